"""The text of a kept state: every field is checked before anything of it counts."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.kept.keeping import DesiredKeeper, recall, wanted_again
from colibri.cluster.placing.kept.state import Asked, KeptState, as_text, from_text, kept_of
from colibri.cluster.placing.kept.store import FileStore
from colibri.cluster.placing.planner.problem import Worker
from colibri.deployment.state import file_name
from colibri.errors import ConfigError, InvalidInput
from colibri.placement import spread

ASKED = Asked(3, 2)
SHAPE = (2, 4)


def desired() -> Desired:
    start = Desired.of(spread(*SHAPE, ["w0", "w1", "w2"], 2), 2)
    start = replace(start, facts={"w1": Worker("w1", "10.0.0.2")})
    return replace(
        start.move((1, 2), "w0", "").drain("w1"), loads=((1.0, 2.5, 0.0, 3.0), (4.0, 1.0, 1.0, 1.0))
    )


def test_what_is_kept_comes_back() -> None:
    kept = kept_of(desired(), ASKED)
    assert from_text(as_text(kept)) == kept
    again = wanted_again(kept, ASKED, 7, pytest.fail)
    assert (again.workers, again.drained, again.holders) == (("w0", "w2"), ("w1",), desired().holders)
    assert (again.pinned, again.loads, again.expert_bytes) == (frozenset({(1, 2)}), desired().loads, 7)
    assert again.facts["w1"].host == "10.0.0.2"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("colibri_desired_state",), 2, "colibri_desired_state: expected 1, got 2"),
        (("asked",), [], "asked: expected a JSON object"),
        (("asked", "workers"), 0, "asked.workers: expected an integer from 1"),
        (("asked", "replicas"), True, "asked.replicas: expected an integer from 1"),
        (("workers",), [], "workers: expected 1 to 256 names that differ"),
        (("workers", 0), "w0/../x", "workers: expected workers' names, as w0"),
        (("workers", 0), "w2", "workers: expected 1 to 256 names that differ"),
        (("drained", "w0"), "", "drained: expected workers that are not among `workers` too, got w0"),
        (("drained", "w1"), 3, "drained.w1: expected the name of a host, got 3"),
        (("holders",), None, "holders: expected a list, got None"),
        (("holders", 1), [[0]], "holders[1]: expected a list of 4, got one of 1"),
        (("holders", 0, 3), [], "holders[0][3]: expected one worker or more, each once"),
        (("holders", 0, 3), [0, 0], "holders[0][3]: expected one worker or more, each once"),
        (("holders", 0, 3), [2], "holders[0][3]: expected an integer from 0 to 1, got 2"),
        (("moved_by_hand",), [[2, 0]], "moved_by_hand: expected an integer from 0 to 1, got 2"),
        (("loads", 0, 0), float("nan"), "loads[0]: expected finite numbers, none negative, got nan"),
        (("loads", 0, 0), -1, "loads[0]: expected finite numbers, none negative, got -1"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], value: object, message: str) -> None:
    document = json.loads(as_text(kept_of(desired(), ASKED)))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidInput) as caught:
        from_text(json.dumps(document))
    assert caught.value.message.startswith(message)


def test_no_damage_gets_through_untyped() -> None:
    """2,000 texts with a few bytes changed, cut or repeated: a state, or InvalidInput."""
    draw, whole = random.Random(5), as_text(kept_of(desired(), ASKED))
    for _ in range(2000):
        text = list(whole)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(text))
            text[at : at + draw.randrange(3)] = draw.choice(
                ["", "0", "-1", '"', "null", "[", "]", "9" * 30, "é"]
            )
        try:
            assert isinstance(from_text("".join(text)), KeptState)
        except InvalidInput:
            continue


def test_the_command_line_counts_where_it_has_changed() -> None:
    kept = kept_of(desired(), ASKED)
    lines: list[str] = []
    more = wanted_again(kept, Asked(4, 2), 1, lines.append)
    assert (more.workers, more.drained) == (("w0", "w2", "w3", "w4"), ("w1",))
    single = wanted_again(kept, Asked(3, 1), 1, lines.append)
    assert single.workers == ("w0", "w2")
    assert single.replicas == 1
    assert lines == [
        "state: --workers 4 counts: it was 3 when the state was kept",
        "state: --replicas 1 counts: it was 2 when the state was kept",
    ]


def test_another_models_state_is_set_aside(tmp_path: Path) -> None:
    store, lines = FileStore(tmp_path / "s.json"), list[str]()
    store.save(as_text(kept_of(desired(), ASKED)))
    assert recall(store, ASKED, (2, 8), False, lines.append) is None
    assert "holders: expected 2 layers of 8 experts, got 2 of 4" in lines[0]
    assert [file.name for file in tmp_path.iterdir()] == ["s.json.damaged"]
    assert recall(store, ASKED, SHAPE, False, pytest.fail) is None


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new" / "s.json")
    assert store.load() is None
    for text in ("one", "two"):
        store.save(text)
    assert store.load() == "two"
    assert (tmp_path / "new" / "s.json").stat().st_mode & 0o777 == 0o600
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_a_place_that_takes_nothing_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store, lines = FileStore(tmp_path / "file" / "s.json"), list[str]()
    with pytest.raises(ConfigError, match="--state: expected a file that can be written"):
        store.save("x")
    keeper = DesiredKeeper(store, ASKED, lines.append)
    for _ in range(3):
        keeper.keep(desired())
    keeper.close()
    assert keeper.trouble.startswith("--state: expected a file that can be written")
    assert len(lines) == 1
    assert lines[0].startswith("state: not kept, so a restart forgets it: --state")


def test_the_newest_state_is_what_is_kept(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s.json")
    keeper = DesiredKeeper(store, ASKED, pytest.fail)
    keeper.keep(desired())
    keeper.keep(desired().undrain("w1"))
    keeper.close()
    text = store.load()
    assert text is not None
    assert from_text(text).workers == ("w0", "w1", "w2")


def test_files_are_named_by_model_and_address() -> None:
    assert file_name("/models/mixtral/", "127.0.0.1:50051").startswith("mixtral-127.0.0.1-50051-")
    names = {file_name(m, at) for m in ("/a/m", "/b/m") for at in ("h:1", "h:2", "unix:/x/" + "y" * 300)}
    assert len(names) == 6
    assert all(len(name) < 150 and "/" not in name for name in names)
