"""Scripts that run in .venv-peers or, of vLLM, in .venv-vllm, and how to find those environments."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python() -> str:
    """The peers' interpreter (COLIBRI_PEERS_PYTHON, else .venv-peers). Raises FileNotFoundError with the command
    that makes it."""
    return _found("COLIBRI_PEERS_PYTHON", ".venv-peers")


def vllm_python() -> str:
    """vLLM's interpreter (COLIBRI_VLLM_PYTHON, else .venv-vllm): it pins other releases of what the peers share.
    Raises as `python` does."""
    return _found("COLIBRI_VLLM_PYTHON", ".venv-vllm")


def script(name: str) -> str:
    return str(ROOT / "benchmarks" / "peers" / name)


def with_client() -> dict[str, str]:
    """Environment in which the peers' interpreter finds colibri.client: it needs gRPC and protobuf, nothing native."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "typings")}


def _found(variable: str, folder: str) -> str:
    path = Path(os.environ.get(variable, ROOT / folder / "bin" / "python"))
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make peers`")
    return str(path)
