"""What is said when Ray has too little."""

from __future__ import annotations

from colibri.cluster.ray.options import Spread
from colibri.cluster.ray.session import Host, NodeView
from colibri.cluster.ray.shortage import needs_and_has

NODES = [
    NodeView("a", Host("head", "10.0.0.1"), 0, 0),
    NodeView("b", Host("one", "10.0.0.2"), 2, 0),
    NodeView("c", Host("two", "10.0.0.3"), 1, 1),
]


def test_needs_and_has() -> None:
    text = needs_and_has(["w0", "w1", "w2"], Spread.HOSTS, 1, 0, NODES, 3.0)
    assert text == (
        "3 workers (w0, w1, w2) need one colibri_worker each on 3 different hosts; Ray has 2 hosts that offer it"
        " (one (10.0.0.2) with 2, two (10.0.0.3) with 1), 3 free"
    )


def test_several_on_one_host_but_replicas_apart() -> None:
    text = needs_and_has(["w0", "w1", "w2", "w3"], Spread.ANY, 2, 0, NODES, 0.0)
    assert "4 workers (w0, w1, w2, w3) need one colibri_worker each on 2 different hosts" in text
    assert text.endswith("0 free")


def test_one_worker_needs_no_other_host() -> None:
    text = needs_and_has(["w7"], Spread.ANY, 2, 0, NODES, 1.0)
    assert text.startswith("1 worker (w7) need one colibri_worker each; Ray has")


def test_gpus_are_part_of_it() -> None:
    text = needs_and_has(["w0"], Spread.HOSTS, 1, 1, NODES, 3.0)
    assert "need one colibri_worker and 1 GPU each" in text
    assert "1 host that offer it (two (10.0.0.3) with 1 and 1 GPUs)" in text


def test_nobody_at_all() -> None:
    assert "0 hosts that offer it (none), 0 free" in needs_and_has(["w0"], Spread.ANY, 1, 0, [], 0.0)
