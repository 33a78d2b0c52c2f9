"""Cut messages into frames and put them together again.

Tensors above 1 MiB travel in chunks, and chunks of several messages may interleave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from colibri.errors import Busy, InvalidInput
from colibri.wire.frame import Frame, write_frame
from colibri.wire.header import Header
from colibri.wire.limits import CHUNK_BYTES

Parts = tuple[bytes | memoryview, ...]
Key = tuple[int, int]


def message_frames(
    header: Header, tensor: bytes | memoryview, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Parts]:
    """Cuts one message into frames.

    header: is completed (chunk index, last flag, total size, checksum) and leaves with the first frame.
    tensor: all bytes of the message; not copied.
    """
    size = len(tensor)
    header.chunk_index = 0
    header.total_bytes = size
    header.last_chunk = size <= chunk_bytes
    if header.last_chunk:
        yield write_frame(header, tensor)
        return
    whole = memoryview(tensor)
    yield write_frame(header, whole[:chunk_bytes])
    for index, begin in enumerate(range(chunk_bytes, size, chunk_bytes), 1):
        piece = Header(
            correlation_id=header.correlation_id,
            attempt=header.attempt,
            chunk_index=index,
            last_chunk=begin + chunk_bytes >= size,
        )
        yield write_frame(piece, whole[begin : begin + chunk_bytes])


@dataclass(slots=True)
class _Partial:
    header: Header
    lists_crc: int
    buffer: memoryview
    filled: int
    next_index: int


class Reassembler:
    """Puts a stream's messages together again. Not thread-safe: one stream, one reader.

    Holds at most `max_messages` incomplete messages and `max_bytes` of tensors. A message's share is reserved when
    its first frame arrives, so that frame's claims must have been checked before. Messages of a single frame pass
    without a copy.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._partial: dict[Key, _Partial] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._partial)

    @property
    def held_bytes(self) -> int:
        """Bytes reserved by incomplete messages."""
        return self._bytes

    def __contains__(self, key: Key) -> bool:
        return key in self._partial

    def add(self, frame: Frame) -> Frame | None:
        """Returns the whole message (its first header, all its bytes) if this frame completes one, else None.

        Raises Busy at the bounds, InvalidInput if the frame does not fit its message, which is then dropped.
        """
        header, tensor, lists_crc = frame
        key = (header.correlation_id, header.attempt)
        if header.chunk_index:
            return self._append(key, header, tensor)
        if key in self._partial:
            self.discard(key)
            raise InvalidInput("chunk_index", "the next of its message", "0 again")
        size = len(tensor)
        if header.last_chunk:
            if header.total_bytes != size:
                raise InvalidInput("total_bytes", f"{size}, the bytes of the only chunk", header.total_bytes)
            return frame
        if not 0 < size < header.total_bytes:
            raise InvalidInput(
                "tensor", f"1 to {header.total_bytes - 1} bytes in a first of several chunks", size
            )
        if len(self._partial) >= self._max_messages:
            raise Busy(f"{self._max_messages} incomplete messages wait already")
        if self._bytes + header.total_bytes > self._max_bytes:
            raise Busy(f"incomplete messages hold {self._bytes} of {self._max_bytes} bytes")
        buffer = np.empty(header.total_bytes, np.uint8).data
        buffer[:size] = tensor
        self._partial[key] = _Partial(header, lists_crc, buffer, size, 1)
        self._bytes += header.total_bytes
        return None

    def discard(self, key: Key) -> bool:
        """Forgets an incomplete message. Returns whether there was one."""
        partial = self._partial.pop(key, None)
        if partial is None:
            return False
        self._bytes -= partial.header.total_bytes
        return True

    def _append(self, key: Key, header: Header, tensor: memoryview) -> Frame | None:
        partial = self._partial.get(key)
        if partial is None:
            raise InvalidInput("chunk_index", "0, the first chunk of a message", header.chunk_index)
        total = partial.header.total_bytes
        size = len(tensor)
        end = partial.filled + size
        problem: InvalidInput | None = None
        if header.chunk_index != partial.next_index:
            problem = InvalidInput("chunk_index", str(partial.next_index), header.chunk_index)
        elif not size or end > total or (end == total) != header.last_chunk:
            left = total - partial.filled
            expected = f"{left} bytes in the last chunk" if header.last_chunk else f"1 to {left - 1} bytes"
            problem = InvalidInput("tensor", expected, size)
        if problem is not None:
            self.discard(key)
            raise problem
        partial.buffer[partial.filled : end] = tensor
        partial.filled = end
        partial.next_index += 1
        if not header.last_chunk:
            return None
        self.discard(key)
        return Frame(partial.header, partial.buffer, partial.lists_crc)
