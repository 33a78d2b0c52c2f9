"""Which faults act, and what they make of an answer."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.errors import Busy, ColibriError, FrameError, InvalidInput
from colibri.expert_service.faults import MAX_RULES, Delivery, FaultKind, FaultRule, Faults
from colibri.v1 import expert_pb2
from colibri.wire.chunks import Parts, message_frames
from colibri.wire.frame import read_frame, verify
from colibri.wire.header import Header


def answer(units: int = 3, hidden: int = 8, chunk_bytes: int = 1 << 20) -> list[Parts]:
    rows = np.arange(units * hidden, dtype=np.float32)
    header = Header(
        kind=expert_pb2.FRAME_KIND_RESULT, correlation_id=5, rows=units, hidden=hidden, units=units
    )
    return list(message_frames(header, rows.view(np.uint8).data, chunk_bytes))


def faults(*rules: FaultRule) -> Faults:
    made = Faults()
    made.replace(rules)
    return made


def whole(frames: list[Parts]) -> tuple[bytes, ...]:
    return tuple(b"".join(parts) for parts in frames)


def test_nothing_acts_without_rules() -> None:
    none = faults()
    none.at_admission()
    none.at_load()
    assert none.units_to_drop(Header(units=2)) == 0
    assert none.deliver(answer()) == Delivery(whole(answer()))
    assert none.injected == {}


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 40])
def test_a_corrupt_answer_never_passes_its_checksum(chunk_bytes: int) -> None:
    corrupting = faults(FaultRule(FaultKind.CORRUPT, seed=3))
    good = whole(answer(chunk_bytes=chunk_bytes))
    for _ in range(200):
        frames = corrupting.deliver(answer(chunk_bytes=chunk_bytes)).frames
        changed = [index for index, pair in enumerate(zip(frames, good, strict=True)) if pair[0] != pair[1]]
        assert len(changed) == 1
        bad, expected = frames[changed[0]], good[changed[0]]
        assert len(bad) == len(expected)
        assert sum(a != b for a, b in zip(bad, expected, strict=True)) == 1
        with pytest.raises(FrameError, match="crc32c"):
            verify(read_frame(bad))
    assert corrupting.injected == {FaultKind.CORRUPT: 200}


def test_a_truncated_answer_is_a_prefix() -> None:
    truncating = faults(FaultRule(FaultKind.TRUNCATE, seed=4))
    (good,) = whole(answer())
    sizes = set()
    for _ in range(300):
        (frame,) = truncating.deliver(answer()).frames
        assert good.startswith(frame)
        sizes.add(len(frame))
    assert 1 <= min(sizes) < max(sizes) < len(good)
    assert len(sizes) > 50


def test_duplicates_and_delays() -> None:
    assert faults(FaultRule(FaultKind.DUPLICATE)).deliver(answer()).frames == whole(answer()) * 2
    assert faults(FaultRule(FaultKind.SLOW, delay_s=0.5)).deliver(answer()).wait_s == 0.5
    assert faults(FaultRule(FaultKind.LATE, delay_s=0.25)).deliver(answer()).hold_s == 0.25


def test_one_unit_too_few() -> None:
    dropping = faults(FaultRule(FaultKind.WRONG_SHAPE))
    reply = Header(units=2, unit_status=np.array([0, 1], np.uint32))
    assert dropping.units_to_drop(reply) == 1
    assert (reply.units, reply.unit_status.tolist()) == (1, [0])
    assert dropping.units_to_drop(Header(units=0)) == 0


def test_refusals() -> None:
    with pytest.raises(Busy, match="on purpose"):
        faults(FaultRule(FaultKind.BUSY)).at_admission()
    with pytest.raises(ColibriError, match="on purpose"):
        faults(FaultRule(FaultKind.REFUSE_LOAD)).at_load()


def test_the_seed_decides_the_draws() -> None:
    def pattern(seed: int) -> list[bool]:
        drawn = faults(FaultRule(FaultKind.DUPLICATE, probability=0.3, seed=seed))
        return [len(drawn.deliver(answer()).frames) == 2 for _ in range(400)]

    assert pattern(1) == pattern(1)
    assert pattern(1) != pattern(2)
    assert 60 < sum(pattern(1)) < 180


def test_most_bounds_and_replace_ends() -> None:
    bounded = faults(FaultRule(FaultKind.DUPLICATE, most=2))
    assert [len(bounded.deliver(answer()).frames) for _ in range(4)] == [2, 2, 1, 1]
    bounded.replace([])
    assert bounded.injected == {FaultKind.DUPLICATE: 2}
    bounded.replace([FaultRule(FaultKind.DUPLICATE)])
    bounded.deliver(answer())
    assert bounded.injected == {FaultKind.DUPLICATE: 3}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("probability", {"probability": 1.5}),
        ("probability", {"probability": float("nan")}),
        ("delay_us", {"delay_s": 1.0}),
        ("delay_us", {"kind": FaultKind.SLOW}),
        ("delay_us", {"kind": FaultKind.LATE, "delay_s": 1e9}),
    ],
)
def test_bad_rules_are_refused(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=field):
        FaultRule(**({"kind": FaultKind.CORRUPT} | changes))  # type: ignore[arg-type]


def test_too_many_rules_are_refused() -> None:
    with pytest.raises(InvalidInput, match="faults"):
        faults(*[FaultRule(FaultKind.CORRUPT)] * (MAX_RULES + 1))
