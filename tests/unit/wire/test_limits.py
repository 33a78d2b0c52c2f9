from __future__ import annotations

import numpy as np
import pytest

from colibri.errors import ConfigError
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.limits import CHUNK_BYTES, MAX_ERROR_CHARS, FrameLimits
from colibri.wire.units import check_forward
from tests.support.frames import forward, u32


def test_they_follow_from_the_model() -> None:
    limits = FrameLimits(32, 8, 2, 4096, "bf16", max_rows=1024)
    assert (limits.row_bytes, limits.result_row_bytes) == (8192, 16384)
    assert limits.max_request_bytes == 8 << 20
    assert limits.max_reply_bytes == 32 << 20
    assert limits.max_entries == 2048
    assert (limits.mode_number, limits.dtype_number) == (
        expert_pb2.COMPUTE_MODE_BF16,
        expert_pb2.DTYPE_BF16,
    )
    assert FrameLimits(1, 1, 1, 10, "fp32").row_bytes == 40


@pytest.mark.parametrize(
    ("experts", "top_k", "hidden"), [(1, 1, 1), (8, 2, 4096), (256, 8, 7168), (300, 16, 64)]
)
def test_the_largest_frame_fits(experts: int, top_k: int, hidden: int) -> None:
    limits = FrameLimits(61, experts, top_k, hidden, "fp32", max_rows=64)
    entries = limits.max_entries
    groups = min(experts, entries)
    count = np.full(groups, entries // groups, np.uint32)
    count[0] += entries % groups
    largest = forward(
        limits,
        correlation_id=(1 << 64) - 1,
        attempt=(1 << 32) - 1,
        rows=limits.max_rows,
        units=entries,
        epoch=(1 << 64) - 1,
        incarnation=(1 << 64) - 1,
        remaining_us=(1 << 64) - 1,
        priority=(1 << 32) - 1,
        group_expert=np.arange(groups, dtype=np.uint32),
        group_count=count,
        entry_row=np.repeat(np.arange(limits.max_rows, dtype=np.uint32), top_k),
        entry_slot=np.tile(np.arange(top_k, dtype=np.uint32), limits.max_rows),
        entry_unit=np.arange(entries, dtype=np.uint32),
        entry_weight=np.ones(entries, np.float32),
        unit_slots=np.ones(entries, np.uint32),
        trace_id=bytes(16),
        error_message="\N{PILE OF POO}" * MAX_ERROR_CHARS,
        retry_after_us=(1 << 64) - 1,
        queue_us=(1 << 64) - 1,
        compute_us=(1 << 64) - 1,
    )
    check_forward(largest, limits)
    largest.unit_status = u32(*[1] * entries)
    first = next(message_frames(largest, bytes(max(CHUNK_BYTES + 1, limits.max_request_bytes))))
    assert sum(map(len, first)) <= limits.max_frame_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden: expected 1 to 2"),
        ({"max_rows": 1 << 24}, "max_rows: expected 1 to 2"),
        ({"layers": -1}, "layers: expected"),
        ({"compute_mode": "int8"}, "compute_mode: expected fp32 or bf16, got int8"),
    ],
)
def test_wrong_values(change: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"layers": 1, "experts": 1, "top_k": 1, "hidden": 1, "compute_mode": "fp32"}
    with pytest.raises(ConfigError, match=message):
        FrameLimits(**(values | change))  # type: ignore[arg-type]
