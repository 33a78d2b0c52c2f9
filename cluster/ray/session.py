"""This process's connection to Ray, and what Ray says of hosts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from colibri.cluster.ray.options import RESOURCE
from colibri.errors import ColibriError, ConfigError
from colibri.installation import extra_command

NAMESPACE = "colibri"


@dataclass(frozen=True, slots=True)
class Host:
    """name: as the host calls itself; address: where the others reach it."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node of Ray. seats: workers that it takes; gpus: that it has."""

    id: str
    host: Host
    seats: int
    gpus: int


def api() -> Any:
    """The module ray, imported when it is first used. Raises ConfigError without it."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError("launcher", f"the extra 'ray': {extra_command('ray')}", error) from error


def connect(address: str) -> Callable[[], None]:
    """Joins a running cluster. Returns a function that leaves it. Raises ConfigError without Ray, ColibriError if none
    runs.
    """
    ray = api()
    if ray.is_initialized():
        return lambda: None
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ColibriError(f"Ray at {address!r}: {error}", peer="ray") from error
    leave: Callable[[], None] = ray.shutdown
    return leave


def living_nodes() -> list[NodeView]:
    ray = api()
    return [_view(node) for node in ray.nodes() if node["Alive"]]


def this_host() -> tuple[Host, int, list[int]]:
    """Returns, for the actor that asks, its host, how many workers that takes (at least 1), and the GPUs that Ray gave
    it.
    """
    ray = api()
    context = ray.get_runtime_context()
    gpus = [int(gpu) for gpu in ray.get_gpu_ids()]
    for node in living_nodes():
        if node.id == context.get_node_id():
            return node.host, max(1, node.seats), gpus
    raise ColibriError("Ray does not know the node that this actor runs on", peer="ray")


def _view(node: dict[str, Any]) -> NodeView:
    resources = node.get("Resources", {})
    host = Host(str(node["NodeManagerHostname"]), str(node["NodeManagerAddress"]))
    return NodeView(str(node["NodeID"]), host, int(resources.get(RESOURCE, 0)), int(resources.get("GPU", 0)))
