"""Weights that change under a running deployment, or differ from host to host: refused by name before they answer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.cluster.workers.attached import AttachedWorkers
from colibri.errors import CheckpointError, ColibriError, NumericsMismatch
from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.digest_file import FILE_NAME
from colibri.models.fingerprint import windows
from colibri.models.random_mixtral import random_mixtral
from colibri.models.shards import open_weights
from colibri.placement import spread
from tests.conftest import TINY
from tests.support.clusters import answer, deployed, eventually, kill, statuses
from tests.support.command import main
from tests.support.expert_servers import MoeBench

WAIT_S = 120.0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))
    return random_mixtral(tmp_path / "model", replace(TINY, layers=2))


@contextmanager
def damaged(folder: Path, part: str) -> Iterator[list[str]]:
    """Inside, 32 bytes of each such tensor are others, where the model's hash does not look; sizes and times stay."""
    hash_before = Checkpoint.open(folder).model_hash()
    with ExitStack() as undo:
        names = []
        for name, file in open_weights(folder).items():
            if part not in name:
                continue
            info = file.tensors[name]
            first, length = windows(info.begin, info.end)[0]
            undo.callback(xor, file.path, first + length, 32)
            xor(file.path, first + length, 32)
            names.append(name)
        assert Checkpoint.open(folder).model_hash() == hash_before
        yield names


def xor(path: Path, at: int, count: int) -> None:
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        # The lowest bits of bf16: still finite.
        file.write(bytes(byte ^ (1 - number % 2) for number, byte in enumerate(old)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_restarted_worker_refuses_changed_weights(model: Path, replicas: int) -> None:
    log: list[str] = []
    with deployed(model, 2, replicas=replicas, log=log.append) as deployment:
        before = answer(deployment)
        with damaged(model, "experts"):
            (victim,) = (status for status in statuses(deployment) if status.name == "w1")
            kill(victim.pid)
            eventually(lambda: "content: expected " in last_error(deployment), WAIT_S, "w1 refused")
            said = last_error(deployment)
            assert "model.safetensors: model.layers." in said
            assert ".weight: content: expected " in said
            assert "as first loaded" in said
            assert any(said.split("content")[0] in line for line in log)
            if replicas == 2:
                # From the one that lives; never from the damaged copy.
                found = answer(deployment)
                assert (found.ids, found.receipts) == (before.ids, before.receipts)
            else:
                with pytest.raises(ColibriError):
                    answer(deployment)
        eventually(lambda: serves(deployment, "w1"), WAIT_S, "w1 back, over the right weights")
        found = answer(deployment)
        assert (found.ids, found.receipts) == (before.ids, before.receipts)


@pytest.mark.parametrize("part", ["lm_head", "experts.5.w2", "layers.1.self_attn.q_proj"])
def test_the_next_start_refuses_them(model: Path, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with deployed(model, 0) as deployment:
        before = answer(deployment)
    with damaged(model, part) as names:
        with pytest.raises(CheckpointError, match=rf"{names[0]}: content: expected \w+, as first loaded"):
            deployed(model, 0).__enter__()
        assert main(["verify", str(model)]) == 1
        told = capsys.readouterr()
        assert all(f"{name}: content: expected " in told.err for name in names)
        assert f"{len(names)} of " in told.out
        assert main(["verify", str(model), "--accept"]) == 0
        assert all(f"changed: model.safetensors: {name}: " in capsys.readouterr().out for name in names[:1])
        with deployed(model, 0) as deployment:
            assert answer(deployment).receipts != before.receipts
    assert main(["verify", str(model)]) == 1
    assert main(["verify", str(model), "--accept"]) == 0
    with deployed(model, 0) as deployment:
        assert answer(deployment).receipts == before.receipts


def test_a_worker_whose_copy_differs_from_the_others(model: Path, tmp_path: Path) -> None:
    """Two hosts, neither of which has loaded its copy before."""
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns(FILE_NAME))
    with damaged(copy, "experts.3."):
        good, bad = (MoeBench(folder, ComputeMode.BF16, folder.parent) for folder in (model, copy))
        with (
            good.worker("w0", "tcp", load=False) as first,
            bad.worker("w1", "tcp", load=False) as second,
        ):
            workers = AttachedWorkers(
                [first.target, second.target],
                lambda ids: spread(good.layers, good.experts, list(ids), replicas=2),
            )
            try:
                with pytest.raises(
                    ColibriError, match=r"expert 3 of layer 0: content: expected \w{32}, "
                ) as info:
                    workers.wait_serving()
                assert info.value.code is NumericsMismatch.code
                # Which of them is right is not known: one at most serves.
                assert len(workers.directory.current().endpoints) <= 1
            finally:
                workers.close()


def test_one_digest_for_all_weights(model: Path, tmp_path: Path) -> None:
    """Whoever loads them, however many, from whichever copy."""
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    with deployed(model, 2) as two, deployed(copy, 0) as none:
        assert len(two.content_digest()) == 32
        assert two.content_digest() == none.content_digest()
    (copy / FILE_NAME).unlink()
    with damaged(copy, "experts.6.w3"), deployed(copy, 0) as other:
        assert other.content_digest() != two.content_digest()


def last_error(deployment: object) -> str:
    return next(status.last_error for status in statuses(deployment) if status.name == "w1")  # type: ignore[arg-type]


def serves(deployment: object, name: str) -> bool:
    return name in deployment.directory.current().endpoints  # type: ignore[attr-defined]
