"""Writes the seeds of both fuzz targets: `python -m tests.fuzz.make_corpus`. They are the good inputs and the bad ones
of the tables in tests/integration/bad_input, so that every new case becomes a seed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.safetensors_writer import SINGLE_NAME
from colibri.wire.limits import FrameLimits
from tests.integration.bad_input import frames
from tests.integration.bad_input.checkpoint_files import SAFETENSORS
from tests.integration.bad_input.folders import write_header

CORPUS = Path(__file__).parent / "corpus"
LIMITS = FrameLimits(layers=2, experts=4, top_k=2, hidden=32, compute_mode="bf16", max_rows=64)
#: Seeds stay small: a fuzzer learns nothing from a megabyte.
MOST = 4096


def frame_seeds() -> dict[str, bytes]:
    """By name. Several frames of one case are several seeds."""
    seeds = {"good": frames.frame(frames.good(LIMITS), bytes(frames.TOTAL))}
    for case in frames.CASES:
        for at, data in enumerate(case.make(LIMITS)):
            if len(data) <= MOST:
                seeds[f"{case.id}.{at}"] = data
    return seeds


def safetensors_seeds() -> dict[str, bytes]:
    """Hand-made files of a few tensors, and damaged ones."""
    entry = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    seeds: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / SINGLE_NAME

        def seed(label: str, header: object, data: bytes, length: int | None = None) -> None:
            write_header(path, header, data, length)
            seeds[label] = path.read_bytes()

        seed("empty", {}, b"")
        seed("one", {"a": entry}, bytes(range(12)))
        scalar = {"dtype": "F32", "shape": [], "data_offsets": [12, 16]}
        none = {"dtype": "F16", "shape": [0, 7], "data_offsets": [16, 16]}
        seed(
            "three", {"__metadata__": {"format": "pt"}, "a": entry, "b": scalar, "c": none}, bytes(range(16))
        )
        seed("overlap", {"a": entry, "b": {**scalar, "data_offsets": [8, 12]}}, bytes(12))
        seed("wraps", {"a": {**entry, "shape": [6, (1 << 64) + 1]}}, bytes(12))
        seed("half", {"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"\0")
        seed("beyond", {"a": entry}, bytes(12), 1 << 20)
        seed("huge", {"a": entry}, bytes(12), (1 << 64) - 1)
        model = random_mixtral(
            Path(name) / "m",
            RandomMixtral(hidden=2, ffn=2, layers=1, experts=1, top_k=1, heads=1, kv_heads=1, vocab=300),
        )
        whole = (model / SINGLE_NAME).read_bytes()
        seeds["model"] = whole
        for case in SAFETENSORS:
            if not case.id.endswith(("pipe", "nested")):
                (model / SINGLE_NAME).write_bytes(whole)
                case.damage(model)
                seeds[case.id] = (model / SINGLE_NAME).read_bytes()
    return {label: data for label, data in seeds.items() if len(data) <= MOST}


def main() -> None:
    for folder, seeds in (("frame", frame_seeds()), ("safetensors", safetensors_seeds())):
        target = CORPUS / folder
        target.mkdir(parents=True, exist_ok=True)
        for old in target.iterdir():
            old.unlink()
        for label, data in seeds.items():
            (target / label).write_bytes(data)


if __name__ == "__main__":
    main()
