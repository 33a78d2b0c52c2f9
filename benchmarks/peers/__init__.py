"""Scripts that run in .venv-peers, and how to find that environment."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python() -> str:
    """The peers' interpreter (COLIBRI_PEERS_PYTHON, else .venv-peers). Raises FileNotFoundError with the command
    that makes it."""
    path = Path(os.environ.get("COLIBRI_PEERS_PYTHON", ROOT / ".venv-peers" / "bin" / "python"))
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make peers`")
    return str(path)


def script(name: str) -> str:
    return str(ROOT / "benchmarks" / "peers" / name)


def with_client() -> dict[str, str]:
    """Environment in which the peers' interpreter finds colibri.client: it needs gRPC and protobuf, nothing native."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "typings")}
