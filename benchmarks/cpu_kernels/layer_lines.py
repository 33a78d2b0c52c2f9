"""The lines of `make reach TOPIC=cpu-kernels` about a whole MoE layer and a whole gate, against transformers and torch.

Arms are fresh processes that alternate. A layer holds 704 MB of bf16 weights, of which a call of one row takes two
experts of eight: rows differ from call to call, so that weights come from memory."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from benchmarks.cpu_kernels.fresh import RUNS, Spread, alternated, module, ratios
from benchmarks.peers import python, script
from benchmarks.table import Line, Outcome

_PEER = {1: 1.9, 8: 1.7, 64: 2.1, 512: 1.15}
_OWN = {("int8g128", 1): 1.8, ("int8g128", 512): 1.6, ("int4g64", 1): 3.2}
_FORMATS = ("bf16", "int8g128", "int4g64")
_GATE_EXPERTS = (8, 64, 256, 1024)


@cache
def _layers() -> dict[str, list[Any]]:
    """name -> {rows: seconds of a call, median} of each process."""
    arms = {name: module("benchmarks.cpu_kernels.layer_arm", name) for name in _FORMATS}
    return alternated(arms | {"theirs": [python(), script("hf_moe_layer.py")]}, RUNS)


@cache
def _gates() -> dict[str, list[Any]]:
    arms = {
        "ours": module("benchmarks.cpu_kernels.gate_arm", *_GATE_EXPERTS),
        "theirs": [python(), script("torch_gate.py"), *map(str, _GATE_EXPERTS)],
    }
    return alternated(arms, RUNS)


def _seconds(name: str, rows: int) -> list[float]:
    return [float(run["seconds"][str(rows)]) for run in _layers()[name]]


def _of_roof(name: str, rows: int) -> str:
    """How much is left: the layer against the lower of reading the experts that it used and multiplying."""
    return f"{Spread(tuple(float(run['of_roof'][str(rows)]) for run in _layers()[name])).text()} of its roof"


def against_transformers(rows: int) -> Outcome:
    """The quicker of its two experts implementations in each process."""
    mine, theirs = _seconds("bf16", rows), _seconds("theirs", rows)
    found = ratios(mine, theirs)
    value = f"{found.text()}x ({Spread(tuple(1e3 * s for s in mine)).text()} ms, {_of_roof('bf16', rows)})"
    limit = f"transformers bf16 {Spread(tuple(1e3 * s for s in theirs)).text()} ms"
    return Outcome(value, found.median >= _PEER[rows], limit, {"ours": mine, "theirs": theirs})


def against_bf16(name: str, rows: int) -> Outcome:
    mine, own = _seconds(name, rows), _seconds("bf16", rows)
    found = ratios(mine, own)
    value = f"{found.text()}x ({Spread(tuple(1e3 * s for s in mine)).text()} ms, {_of_roof(name, rows)})"
    limit = f"our bf16 {Spread(tuple(1e3 * s for s in own)).text()} ms"
    return Outcome(value, found.median >= _OWN[name, rows], limit, {"ours": mine, "bf16": own})


def gate_4096() -> Outcome:
    runs = _gates()
    found, detail = {}, {}
    for experts in _GATE_EXPERTS:
        mine, theirs = (
            [float(run["seconds"][str(experts)]) for run in runs[arm]] for arm in ("ours", "theirs")
        )
        found[experts] = ratios(mine, theirs)
        detail[str(experts)] = {"ours": mine, "theirs": theirs}
    text = "; ".join(f"{experts} experts: {ratio.text(1)}x" for experts, ratio in found.items())
    met = all(ratio.median >= 20 for ratio in found.values())
    return Outcome(text, met, "torch softmax + topk + renormalise, 2 threads both", dict(detail))


def lines() -> list[Line]:
    target = "at least 20x torch, each number of experts"
    found = [Line("gate-4096", "gate from logits, weights included, 4096 rows, top-2", target, gate_4096)]
    for rows, least in _PEER.items():
        found.append(
            Line(
                f"layer-{rows}", f"layer 2048 x 7168, 8 experts, bf16, {rows} rows",
                f"at least {least:g}x transformers bf16", partial(against_transformers, rows),
            )
        )  # fmt: skip
    for (name, rows), least in _OWN.items():
        found.append(
            Line(
                f"layer-{name}-{rows}", f"the same layer, {name}, {rows} rows",
                f"at least {least:g}x our bf16", partial(against_bf16, name, rows),
            )
        )  # fmt: skip
    return found
