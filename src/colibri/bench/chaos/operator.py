"""Read what a deployment says of itself, for a chaos run."""

from __future__ import annotations

from colibri.client.operator import Operator
from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb

__all__ = ["Operator", "find", "serving", "whats_missing"]

#: States of a worker that is not meant to serve.
_OUT = frozenset({"drained", "stopped"})
#: What a router says of a worker that it does not use.
_UNUSED = frozenset({"lost", "unknown", "ejected", "probing"})


def serving(status: pb.ClusterStatusReply) -> list[pb.WorkerInfo]:
    """Returns the workers that serve, by name."""
    return sorted((w for w in status.workers if w.state == "serving"), key=lambda worker: worker.name)


def in_use(status: pb.ClusterStatusReply) -> list[pb.WorkerInfo]:
    """Returns the workers that serve and that the router uses, by name."""
    return [worker for worker in serving(status) if worker.health not in _UNUSED]


def whats_missing(status: pb.ClusterStatusReply) -> str:
    """Says why the deployment is not whole; empty if every worker that should serve does, the router uses it, and no
    change is in progress.
    """
    if status.change:
        return f"a change is under way: {status.change}"
    for worker in status.workers:
        if worker.state in _OUT:
            continue
        if worker.state != "serving":
            return f"worker {worker.name} is {worker.state}"
        if worker.health in _UNUSED:
            return f"worker {worker.name} serves, the router has it as {worker.health}"
    return ""


def find(status: pb.ClusterStatusReply, name: str) -> pb.WorkerInfo:
    """Returns a worker by name. Raises ColibriError for an unknown one."""
    for worker in status.workers:
        if worker.name == name:
            return worker
    names = ", ".join(worker.name for worker in status.workers)
    raise ColibriError(f"worker: expected one of {names or 'none'}, got {name}")
