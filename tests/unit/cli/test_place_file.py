"""`colibri place --from-file FILE`: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colibri.cli.place_file import plan_file
from colibri.errors import InvalidInput

W = [{"name": "a"}, {"name": "b"}]


def written(folder: Path, document: Any) -> str:
    path = folder / "loads.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_a_plan_from_loads_alone(tmp_path: Path) -> None:
    path = written(tmp_path, {"loads": [[9, 1, 1, 1], [1, 1, 1, 1]]})
    plan = plan_file(path, 4, None)
    assert plan["after"]["worst"] < 1.05 < plan["before"]["worst"]
    assert plan["loads"]
    assert 0 < plan["gain"] < 1
    assert plan_file(path, 2, 2)["loads"] == []


def test_hosts_speeds_memory_and_the_present_placement(tmp_path: Path) -> None:
    document = {
        "loads": [[4, 4, 1, 1]],
        "workers": [{"name": "a", "host": "x", "speed": 2}, {"name": "b", "host": "y", "memory": 40}],
        "holders": [[["a"], ["gone"], ["b"], ["b"]]],
        "expert_bytes": 10,
    }
    plan = plan_file(written(tmp_path, document), None, None)
    moved = {(worker, expert) for worker, _, expert in plan["loads"]}
    assert any(expert == 1 for _, expert in moved)
    assert ["gone", 0, 1] in plan["drops"]
    assert plan["bytes"] == 10 * len(plan["loads"])


def test_the_json_of_status(tmp_path: Path) -> None:
    document = {
        "replicas": 1,
        "layers": [{"rows": [90, 10, 10, 10]}],
        "workers": [
            {
                "name": "w0",
                "state": "serving",
                "held": ["0:0", "0:2"],
                "weight_bytes": 200,
                "compute_threads": 1,
            },
            {
                "name": "w1",
                "state": "serving",
                "held": ["0:1", "0:3"],
                "weight_bytes": 200,
                "compute_threads": 1,
            },
            {"name": "w2", "state": "drained", "held": [], "weight_bytes": 0, "compute_threads": 0},
        ],
        "epoch": 3,
    }
    plan = plan_file(written(tmp_path, document), None, None)
    assert plan["before"]["worst"] == pytest.approx(100 / 60)
    assert plan["after"]["worst"] < 1.05
    assert plan["bytes"] == 100 * len(plan["loads"])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "--from-file: expected a readable JSON file"),
        ([], "--from-file: expected a JSON object, got list"),
        (
            {"loads": [[1]], "worker": W},
            "expected the keys expert_bytes, holders, loads, replicas, workers, got worker",
        ),
        ({"workers": W}, "loads: expected a list of loads for each layer"),
        ({"loads": [[]], "workers": W}, "loads: expected a list of loads for each layer"),
        ({"loads": [[1, "2"]], "workers": W}, r"loads\[0\]: expected numbers, got 2"),
        ({"loads": [[1, -2]], "workers": W}, r"loads\[0\]: expected finite numbers, none negative, got -2"),
        ({"loads": [[1, 2], [1]], "workers": W}, r"loads\[1\]: expected 2 experts, got 1"),
        ({"loads": [[1, 2]]}, "workers: expected a list of workers, or --for-workers N"),
        ({"loads": [[1, 2]], "workers": [{"host": "x"}]}, r"workers\[0\]: expected an object with a name"),
        (
            {"loads": [[1, 2]], "workers": [{"name": "x", "cpu": 1}]},
            r"workers\[0\]: expected name, host, speed, memory",
        ),
        (
            {"loads": [[1, 2]], "workers": [{"name": "x", "speed": "1"}]},
            r"workers\[0\].speed: expected a number, got 1",
        ),
        (
            {"loads": [[1, 2]], "workers": [{"name": "x", "memory": 1.5}]},
            r"workers\[0\].memory: expected bytes, got 1.5",
        ),
        ({"loads": [[1, 2]], "workers": W, "replicas": 3}, "replicas: expected at most 2"),
        ({"loads": [[1, 2]], "workers": W, "replicas": True}, "replicas: expected a whole number, got True"),
        (
            {"loads": [[1, 2]], "workers": W, "holders": [[["a"]]]},
            r"holders\[0\]: expected a list of 2 experts",
        ),
        (
            {"loads": [[1, 2]], "workers": W, "holders": [[["a"], []]]},
            r"holders\[0\]\[1\]: expected a list of names, at least one",
        ),
        ({"layers": [{"rows": [1]}], "workers": [{}]}, "--from-file: expected the JSON of `colibri status"),
    ],
)
def test_what_is_refused(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan_file(written(tmp_path, document), None, None)


def test_no_file() -> None:
    with pytest.raises(InvalidInput, match="--from-file: expected a readable JSON file, got /nowhere"):
        plan_file("/nowhere", 2, None)


def test_the_status_of_several_kinds_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"expert_numerics_id": "mixed(a|b)/homes=00", "layers": [], "workers": []})
    with pytest.raises(
        InvalidInput, match=r"--from-file: expected the status of workers of one .* got mixed\(a\|b\)"
    ):
        plan_file(path, None, None)
