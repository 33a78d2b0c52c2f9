"""A bad disk: any byte of any weight file, in every way that a deployment loads them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.kernels.factory import make_backend
from colibri.models.random_mixtral import random_mixtral
from tests.conftest import TINY
from tests.support import flips
from tests.support.loads import deployment, refusals
from tests.support.tries import Tries

BACKEND = make_backend("reference")
SMALL = replace(TINY, hidden=32, ffn=48, layers=2, experts=4, vocab=300)
#: Workers and replicas.
MODES = {"workers 0": (0, 1), "replicas 1": (2, 1), "replicas 2": (2, 2)}
SHORT, LONG = 12, 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = random_mixtral(tmp_path_factory.mktemp("flips") / "model", SMALL)
    assert refusals(folder, BACKEND, deployment(0, 1)) == []
    return folder


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "count", [SHORT, pytest.param(LONG, marks=pytest.mark.attacks)], ids=["short", "long"]
)
def test_every_byte_is_noticed(model: Path, tries: Tries, mode: str, count: int) -> None:
    workers, replicas = MODES[mode]
    loads = deployment(workers, replicas)
    for number, place in enumerate(flips.places(model, count, seed=count)):
        with flips.flipped(place, bit=number % 8):
            found = refusals(model, BACKEND, loads)
        holders = 1 if "experts" not in place.tensor else replicas
        assert len(found) == holders, place
        assert all(f"{place.path}: {place.tensor}" in text for text in found), (place, found)
    tries(f"flipped bytes of tensors, {mode}", count)
    assert refusals(model, BACKEND, loads) == []


@pytest.mark.parametrize(
    "count", [SHORT, pytest.param(LONG, marks=pytest.mark.attacks)], ids=["short", "long"]
)
def test_every_byte_of_a_header_is_noticed(model: Path, tries: Tries, count: int) -> None:
    for number, place in enumerate(flips.header_places(model, count, seed=count)):
        with flips.flipped(place, bit=number % 8):
            found = refusals(model, BACKEND, deployment(0, 1))
        # What names a tensor may be what was changed.
        assert len(found) >= 1, place
        assert str(model) in found[0], found
    tries("flipped bytes of headers", count)


def test_touched_and_copied_files_are_not(model: Path, tmp_path: Path, tries: Tries) -> None:
    for workers, replicas in MODES.values():
        for number in range(3):
            copy = tmp_path / f"{workers}-{replicas}-{number}"
            shutil.copytree(model, copy)
            for path in copy.iterdir():
                path.touch()
            assert refusals(copy, BACKEND, deployment(workers, replicas)) == []
    tries("touched and copied models", 9)
