"""Colibri: Mixture-of-Experts language models served by expert workers over gRPC, bit for bit.

    from colibri import Colibri

    with Colibri("demo", workers=2) as model:
        print(model.chat("What is the capital of France?").text)

The names of `__all__` are the public API, each imported when it is first used: `import colibri` alone loads nothing.
`colibri.client` has the clients of a running server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from colibri.version import __version__

if TYPE_CHECKING:
    from colibri.api.colibri import Colibri
    from colibri.api.streams import AsyncStream, Stream
    from colibri.client.answer import Answer
    from colibri.coordinator.engine import EngineOptions
    from colibri.deployment.cluster import ClusterOptions
    from colibri.deployment.pinning import PinningOptions
    from colibri.errors import ColibriError
    from colibri.expert_service.gpu_options import GpuOptions
    from colibri.generation import ChatMessage

__all__ = [
    "Answer",
    "AsyncStream",
    "ChatMessage",
    "ClusterOptions",
    "Colibri",
    "ColibriError",
    "EngineOptions",
    "GpuOptions",
    "PinningOptions",
    "Stream",
    "__version__",
]

_HOMES = {
    "Answer": "colibri.client.answer",
    "AsyncStream": "colibri.api.streams",
    "ChatMessage": "colibri.generation",
    "ClusterOptions": "colibri.deployment.cluster",
    "Colibri": "colibri.api.colibri",
    "ColibriError": "colibri.errors",
    "EngineOptions": "colibri.coordinator.engine",
    "GpuOptions": "colibri.expert_service.gpu_options",
    "PinningOptions": "colibri.deployment.pinning",
    "Stream": "colibri.api.streams",
}

if not TYPE_CHECKING:  # a type checker would take every unknown name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
