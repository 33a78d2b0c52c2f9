"""The table of `colibri status`: where workers are and where their memory lies."""

from __future__ import annotations

import pytest

from colibri.cli.status import describe, document
from colibri.v1 import operator_pb2 as pb


def told(**worker: object) -> list[str]:
    """The lines from the worker's on."""
    reply = pb.ClusterStatusReply(workers=[pb.WorkerInfo(name="w0", cpus=[0, 1], **worker)])  # type: ignore[arg-type]
    lines = describe(reply)
    (first,) = (index for index, line in enumerate(lines) if line.startswith("w0 "))
    return lines[first:]


def pages(**by_node: int) -> list[pb.NodePages]:
    return [
        pb.NodePages(node=int(node.strip("n").replace("_", "-")), pages=count)
        for node, count in by_node.items()
    ]


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        ({"numa_node": 1, "weight_pages": pages(n1=500)}, "0-1   1 "),
        ({"numa_node": 1, "weight_pages": pages(n1=500, n_1=12)}, "0-1   1 "),
        ({"numa_node": 1}, "0-1   1 "),
        ({"numa_node": 1, "weight_pages": pages(n0=128, n1=384)}, "0-1   0:25% 1:75% "),
        ({"numa_node": -1, "weight_pages": pages(n0=10)}, "0-1   0:100% "),
        ({"numa_node": -1}, "0-1   - "),
        ({"numa_node": 0, "oversubscribed": True}, "0-1 shared  0 "),
    ],
)
def test_cpus_and_node(worker: dict[str, object], expected: str) -> None:
    assert expected in told(**worker)[0]


def test_what_crosses_nodes_is_told() -> None:
    lines = told(numa_node=0, crossing="CPUs 4 on node 1, memory on node 0: slow")
    assert "w0: CROSSES NUMA NODES: CPUs 4 on node 1, memory on node 0: slow" in lines


def test_machines_get_all_of_it() -> None:
    reply = pb.ClusterStatusReply(workers=[pb.WorkerInfo(numa_node=0, weight_pages=pages(n0=3, n1=1))])
    (worker,) = document(reply)["workers"]
    assert worker["weight_pages"] == [{"node": 0, "pages": 3}, {"node": 1, "pages": 1}]
    assert (worker["numa_node"], worker["crossing"]) == (0, "")
