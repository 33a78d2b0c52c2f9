"""Coverage-guided fuzzing of the frame reader: `python -m tests.fuzz.fuzz_frame tests/fuzz/corpus/frame`.

Every input must be read as protobuf's own parser reads it, or be a FrameError; what is read must be written back to
bytes that read the same; and the checks behind the reader may raise nothing but typed errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import atheris
import numpy as np
from google.protobuf.message import DecodeError

from colibri.errors import Busy, FrameError, InvalidInput
from colibri.v1 import expert_pb2
from colibri.wire import chunks, units
from colibri.wire import frame as frame_module
from colibri.wire import header as header_module
from colibri.wire.chunks import Reassembler
from colibri.wire.frame import Frame, read_frame, scan_frame, verify, write_frame
from colibri.wire.header import FIELDS, LIST_FIELDS, Header, header_from_message
from colibri.wire.limits import FrameLimits
from colibri.wire.units import check_forward, check_result
from tests.fuzz.instrument import instrument

LIMITS = FrameLimits(layers=2, experts=4, top_k=2, hidden=32, compute_mode="bf16", max_rows=64)
#: Reassembly is watched over many inputs: it must never hold more than this.
MAX_BYTES = 1 << 16
_ASSEMBLER = Reassembler(8, MAX_BYTES)


def fields_of(header: Header) -> list[object]:
    """Comparable by ==. A NaN stands for all: protobuf's Python objects hold doubles, which quieten signalling ones."""
    weights = np.where(np.isnan(header.entry_weight), np.float32(np.nan), header.entry_weight)
    values = {name: getattr(header, name) for name in FIELDS} | {"entry_weight": weights}
    return [value.tobytes() if name in LIST_FIELDS else value for name, value in values.items()]


def parsed(data: bytes) -> expert_pb2.Frame | None:
    try:
        return expert_pb2.Frame.FromString(data)
    except DecodeError:
        return None


def same(frame: Frame, message: expert_pb2.Frame) -> None:
    if fields_of(frame.header) != fields_of(header_from_message(message.header)):
        raise AssertionError(f"expected {message.header}, got {frame.header}")
    if bytes(frame.tensor) != message.tensor:
        raise AssertionError("the tensors differ")


def one_input(data: bytes) -> None:
    message = parsed(data)
    scanned = scan_frame(data)
    if scanned is not None:
        if message is None:
            raise AssertionError("read what protobuf refuses")
        same(scanned, message)
    try:
        frame = read_frame(data)
    except FrameError:
        if message is not None:
            raise AssertionError("refused what protobuf reads") from None
        return
    if message is None:
        raise AssertionError("read what protobuf refuses")
    same(frame, message)
    checks(frame)


def checks(frame: Frame) -> None:
    """What a worker and a router do with a frame, in its own order."""
    header = frame.header
    try:
        verify(frame)
    except FrameError:
        if min(header.kind, header.compute_mode, header.wire_dtype, header.retry) < 0:
            return  # protobuf reads such enums; the writer, which writes only what this project names, refuses them
        again = read_frame(b"".join(write_frame(header, frame.tensor)))
        verify(again)
        frame, header = again, again.header
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_forward(header, LIMITS),
        lambda: check_result(header, 2, LIMITS),
    )
    for check in checks:
        try:
            check()
        except InvalidInput as error:
            if ": expected " not in error.message or ", got " not in error.message:
                raise AssertionError(f"not precise: {error.message}") from error
    try:
        if header.total_bytes <= MAX_BYTES:
            _ASSEMBLER.add(frame)
    except (InvalidInput, Busy):
        pass
    if _ASSEMBLER.held_bytes > MAX_BYTES or len(_ASSEMBLER) > 8:
        raise AssertionError("reassembly holds more than its bounds")


if __name__ == "__main__":
    instrument(chunks, frame_module, header_module, units)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
