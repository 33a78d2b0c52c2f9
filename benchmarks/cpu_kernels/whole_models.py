"""The 3 B random Mixtral in all the forms that the model lines compare, made once under the Colibri home.

llama.cpp's converter is no part of its Python package: COLIBRI_LLAMA_CPP names a source tree of it (the sdist of
llama-cpp-python has one in `vendor/llama.cpp`).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.peers import python, script
from colibri.models.home import colibri_home
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from tests.support.command import main as colibri

#: name -> options of `colibri pack`. int8 and int4 in the dense part as well, as the peers' formats have it.
PACKS = {
    "bf16": ("--dtype", "bf16"),
    "int8": ("--dtype", "int8", "--group", "128", "--dense-dtype", "int8"),
    "int4": ("--dtype", "int4", "--group", "64", "--dense-dtype", "int8"),
}
VOCAB = RandomMixtral().vocab


def folder() -> Path:
    """COLIBRI_BENCH_MODELS, else a folder of the Colibri home; about 23 GB."""
    path = Path(os.environ.get("COLIBRI_BENCH_MODELS") or colibri_home(os.environ) / "bench")
    path.mkdir(parents=True, exist_ok=True)
    return path


def checkpoint() -> Path:
    path = folder() / "mixtral-3b"
    return path if path.exists() else random_mixtral(path, RandomMixtral())


def pack(name: str) -> Path:
    path = folder() / f"mixtral-3b-{name}"
    if not path.exists() and colibri(["pack", str(checkpoint()), str(path), *PACKS[name]]):
        raise RuntimeError(f"colibri pack for {path} failed")
    return path


def gguf(kind: str) -> Path:
    """kind: 'bf16', 'q8_0' or 'q4_0'. Raises FileNotFoundError where there is no converter."""
    path = folder() / f"mixtral-3b-{kind}.gguf"
    if path.exists():
        return path
    temporary = path.with_suffix(".part")
    if kind == "bf16":
        tree = Path(os.environ.get("COLIBRI_LLAMA_CPP", "llama.cpp"))
        if not (tree / "convert_hf_to_gguf.py").exists():
            raise FileNotFoundError(f"{tree}: set COLIBRI_LLAMA_CPP to a source tree of llama.cpp")
        command = [python(), script("llama_convert.py"), str(tree), str(checkpoint()), str(temporary)]
    else:
        command = [python(), script("llama_gguf.py"), str(gguf("bf16")), str(temporary), kind]
    subprocess.run(command, check=True)
    temporary.rename(path)
    return path
