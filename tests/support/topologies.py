"""Machines drawn at random, as `discover` would tell of them."""

from __future__ import annotations

from hypothesis import strategies as st

from colibri.cluster.machine.topology import Gpu, NumaNode, Topology


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to eight nodes of up to nine cores of one to four hardware threads, some without memory, some GPUs."""
    nodes, cpu = [], 0
    count = draw(st.integers(1, 8))
    for node in range(count):
        cores = []
        for width in draw(st.lists(st.integers(1, 4), max_size=9)):
            cores.append(tuple(range(cpu, cpu + width)))
            cpu += width
        distances = tuple(
            (other, 10 if other == node else draw(st.integers(11, 40))) for other in range(count)
        )
        nodes.append(NumaNode(node, tuple(cores), 0, distances, draw(st.integers(0, 4)) > 0))
    if cpu == 0:
        nodes[0] = NumaNode(0, ((0,),), 0, ((0, 10),))
    quota = draw(st.none() | st.floats(0.5, 40))
    cards = draw(st.lists(st.integers(-1, count - 1), max_size=6))
    return Topology(tuple(nodes), quota, tuple(Gpu(f"0000:0{i}:00.0", node) for i, node in enumerate(cards)))
