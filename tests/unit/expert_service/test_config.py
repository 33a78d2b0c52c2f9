from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colibri.errors import ConfigError
from colibri.expert_service.config import WorkerConfig
from colibri.expert_service.counters import Counters, Counts

RIGHT: dict[str, Any] = {
    "model": Path("m"),
    "name": "w0",
    "listen": "unix:/tmp/w.sock",
    "compute_mode": "fp32",
}


def test_right_values() -> None:
    config = WorkerConfig(**RIGHT)
    assert (config.incarnation, config.numa_node, config.cpus, config.parent_pid) == (1, -1, (), None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "x" * 65),
        ("name", "a\nb"),
        ("listen", "nowhere"),
        ("compute_mode", "int8"),
        ("incarnation", 0),
        ("incarnation", 1 << 64),
        ("numa_node", -2),
        ("max_rows", 0),
        ("max_queued", 0),
        ("max_streams", 0),
        ("grace_s", -1.0),
        ("threads", 0),
        ("cpus", (0, 0)),
        ("cpus", (-1,)),
    ],
)
def test_wrong_values(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected"):
        WorkerConfig(**(RIGHT | {field: value}))


def test_counters() -> None:
    counters = Counters()
    counters.done(7)
    counters.done(1)
    counters.refused()
    counters.expired()
    counters.cancelled()
    counters.cancelled(3)
    assert counters.counts == Counts(done=2, refused=1, expired=1, cancelled=4, rows=8)
