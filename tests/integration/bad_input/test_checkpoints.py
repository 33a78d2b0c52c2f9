"""Every damaged checkpoint of the table: refused by the loaders and by the real commands, with just its line."""

from __future__ import annotations

import itertools
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colibri.errors import CheckpointError
from colibri.models.checkpoint import Checkpoint
from tests.integration.bad_input.case import MODEL
from tests.integration.bad_input.checkpoint_case import CheckpointCase
from tests.integration.bad_input.checkpoints import CASES
from tests.integration.bad_input.folders import config, copy, good
from tests.integration.bad_input.refused import by_command, by_loaders, verbs_for


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good(tmp_path_factory.mktemp("good") / "model")


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_the_loaders_refuse_it(case: CheckpointCase, source: Path, tmp_path: Path) -> None:
    case.damage(copy(source, tmp_path / "bad"))
    assert by_loaders(case, tmp_path / "bad") == ""


def test_ids_differ() -> None:
    assert len({case.id for case in CASES}) == len(CASES) > 120


def test_the_commands_refuse_it(source: Path, tmp_path: Path) -> None:
    """Every second case by one of the commands that must refuse it, in turn: a process each takes long, and all cases
    are tried above. `make reach TOPIC=surface` tries every one by all of them."""
    turn = itertools.count()

    def tried(case: CheckpointCase) -> tuple[str, str]:
        folder = copy(source, tmp_path / case.id)
        case.damage(folder)
        lines = verbs_for(case, folder)
        arguments = lines[next(turn) % len(lines)]
        noisy = case.id == "tokenizer-panics"
        return case.id, by_command(arguments, case.refusal, folders={str(folder): MODEL}, noisy=noisy)

    with ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(tried, CASES[::2]))
    assert {id: problem for id, problem in found.items() if problem} == {}


def test_a_configuration_that_claims_everything_allocates_nothing(source: Path, tmp_path: Path) -> None:
    folder = copy(source, tmp_path / "bad")
    config(num_hidden_layers=4096, num_local_experts=65536, hidden_size=1 << 20, vocab_size=1 << 24)(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        with pytest.raises(CheckpointError):
            Checkpoint.open(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10
