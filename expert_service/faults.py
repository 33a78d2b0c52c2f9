"""Inject faults on purpose, drawn by their own seeds.

Stream and servicer ask at the few points where a fault can act. Without `--allow-faults` there is nothing to ask.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from colibri.errors import Busy, ColibriError, InvalidInput
from colibri.v1 import faults_pb2
from colibri.wire.chunks import Parts
from colibri.wire.header import EMPTY_U32, Header

#: A reply is never held up for longer, nor are there ever more rules.
MAX_DELAY_S = 600.0
MAX_RULES = 64


class FaultKind(enum.IntEnum):
    """The kinds of colibri.v1.Fault.Kind, which describes each."""

    SLOW = faults_pb2.Fault.KIND_SLOW
    CORRUPT = faults_pb2.Fault.KIND_CORRUPT
    TRUNCATE = faults_pb2.Fault.KIND_TRUNCATE
    DUPLICATE = faults_pb2.Fault.KIND_DUPLICATE
    LATE = faults_pb2.Fault.KIND_LATE
    BUSY = faults_pb2.Fault.KIND_BUSY
    REFUSE_LOAD = faults_pb2.Fault.KIND_REFUSE_LOAD
    WRONG_SHAPE = faults_pb2.Fault.KIND_WRONG_SHAPE


_DELAYED = (FaultKind.SLOW, FaultKind.LATE)


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault in force. Raises InvalidInput, naming the field.

    probability: for each answer or request, 0 to 1.
    delay_s: for SLOW and LATE, seconds.
    seed: for the draws.
    most: how often it acts at most; 0: no limit.
    """

    kind: FaultKind
    probability: float = 1.0
    delay_s: float = 0.0
    seed: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise InvalidInput("probability", "0 to 1", self.probability)
        if not 0.0 <= self.delay_s <= MAX_DELAY_S:
            raise InvalidInput("delay_us", f"0 to {MAX_DELAY_S * 1e6:.0f}", self.delay_s * 1e6)
        if (self.delay_s > 0) != (self.kind in _DELAYED):
            expected = "above 0" if self.kind in _DELAYED else f"0 with {self.kind.name}"
            raise InvalidInput("delay_us", expected, self.delay_s * 1e6)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer leaves.

    wait_s: delay, seconds; everything behind it waits too.
    hold_s: delay during which others may overtake it, seconds.
    """

    frames: tuple[bytes, ...]
    wait_s: float = 0.0
    hold_s: float = 0.0


@dataclass(slots=True)
class _Rule:
    fault: FaultRule
    draw: random.Random
    acted: int = 0


@dataclass(slots=True)
class _State:
    rules: list[_Rule] = field(default_factory=list)
    by_kind: dict[FaultKind, int] = field(default_factory=dict)


class Faults:
    """The faults of one worker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = _State()

    @property
    def injected(self) -> Mapping[FaultKind, int]:
        """Returns how often each kind has acted since the start."""
        with self._lock:
            return dict(self._state.by_kind)

    def replace(self, rules: Sequence[FaultRule]) -> None:
        """Replaces the rules in force. Raises InvalidInput if there are too many."""
        if len(rules) > MAX_RULES:
            raise InvalidInput("faults", f"at most {MAX_RULES}", len(rules))
        with self._lock:
            self._state.rules = [_Rule(rule, random.Random(rule.seed)) for rule in rules]

    def at_admission(self) -> None:
        """Raises Busy if the queue is to look full."""
        if self._acts(FaultKind.BUSY) is not None:
            raise Busy("the queue is full, on purpose")

    def at_load(self) -> None:
        """Raises ColibriError if Load is to fail."""
        if self._acts(FaultKind.REFUSE_LOAD) is not None:
            raise ColibriError("the load is refused, on purpose")

    def units_to_drop(self, reply: Header) -> int:
        """Returns 1 if an answer is to have one unit too few, and takes that unit out of `reply`; else 0."""
        if not reply.units or self._acts(FaultKind.WRONG_SHAPE) is None:
            return 0
        reply.units -= 1
        reply.unit_status = reply.unit_status[:-1] if reply.unit_status.size else EMPTY_U32
        return 1

    def deliver(self, frames: Iterable[Parts]) -> Delivery:
        """Returns what becomes of an answer, given all its frames."""
        out, tensors = [], []
        for parts in frames:
            out.append(b"".join(parts))
            tensors.append(sum(len(part) for part in parts[1:]))
        wait_s = hold_s = 0.0
        corrupt = self._acts(FaultKind.CORRUPT)
        if corrupt is not None:
            index = corrupt.draw.randrange(len(out))
            out[index] = _flipped(out[index], tensors[index], corrupt.draw)
        truncate = self._acts(FaultKind.TRUNCATE)
        if truncate is not None:
            out[-1] = out[-1][: truncate.draw.randrange(1, len(out[-1]))]
        if self._acts(FaultKind.DUPLICATE) is not None:
            out += out
        slow = self._acts(FaultKind.SLOW)
        if slow is not None:
            wait_s = slow.fault.delay_s
        late = self._acts(FaultKind.LATE)
        if late is not None:
            hold_s = late.fault.delay_s
        return Delivery(tuple(out), wait_s, hold_s)

    def _acts(self, kind: FaultKind) -> _Rule | None:
        """Returns the first rule of the kind whose draw says that it acts, and counts it; None if none does."""
        with self._lock:
            for rule in self._state.rules:
                fault = rule.fault
                if fault.kind is not kind or (fault.most and rule.acted >= fault.most):
                    continue
                if rule.draw.random() < fault.probability:
                    rule.acted += 1
                    counts = self._state.by_kind
                    counts[kind] = counts.get(kind, 0) + 1
                    return rule
        return None


def _flipped(frame: bytes, tensor_bytes: int, draw: random.Random) -> bytes:
    """Changes one byte of the tensor at the frame's end, or of the whole frame if it has no tensor."""
    size = tensor_bytes or len(frame)
    out = bytearray(frame)
    out[len(frame) - size + draw.randrange(size)] ^= draw.randrange(1, 256)
    return bytes(out)
