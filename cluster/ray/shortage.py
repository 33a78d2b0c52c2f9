"""Compare what was asked of Ray with what it has: the text of a refusal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.cluster.ray.options import RESOURCE, Spread
from colibri.cluster.ray.session import NodeView


def needs_and_has(
    workers: Sequence[str], spread: Spread, hosts: int, gpus: int, nodes: Sequence[NodeView], free: float
) -> str:
    """Returns the text.

    hosts: how many the workers must at least be spread over.
    free: seats that nobody has, over all nodes.
    """
    each = f"one {RESOURCE}" + (f" and {gpus} GPU" if gpus else "")
    apart = len(workers) if spread is Spread.HOSTS else min(hosts, len(workers))
    where = f" on {apart} different hosts" if apart > 1 else ""
    able = [node for node in nodes if node.seats and node.gpus >= gpus]
    told = ", ".join(
        f"{node.host} with {node.seats}" + (f" and {node.gpus} GPUs" if gpus else "") for node in able
    )
    return (
        f"{_count(len(workers), 'worker')} ({', '.join(workers)}) need {each} each{where}; "
        f"Ray has {_count(len(able), 'host')} that offer it ({told or 'none'}), {free:g} free"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
