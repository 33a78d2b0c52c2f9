"""`colibri inspect` over a sparse folder of Mixtral-8x7B's shapes: everything but the weights is real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri.cli.main import main
from colibri.cli.sizes import size
from colibri.models.random_mixtral import MIXTRAL_8X7B, sparse_mixtral


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sparse_mixtral(tmp_path_factory.mktemp("sparse") / "mixtral", MIXTRAL_8X7B)


def test_json(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral), "--workers", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # As published for Mixtral-8x7B: 46.7 B parameters, of which a token uses 12.9 B, the embedding table
    # included.
    assert sum(found["parameters"].values()) == 46_702_792_704
    assert found["active_parameters"] + found["parameters"]["embedding"] == 12_879_925_248
    assert found["nbytes"]["experts"] == 32 * 8 * 3 * 4096 * 14336 * 2
    assert found["kv_bytes_per_token"] == {"bf16": 131072, "fp32": 262144}
    assert [share["experts"] for share in found["workers"]] == [85, 86, 85]
    assert sum(share["nbytes"] for share in found["workers"]) == found["nbytes"]["experts"]
    assert found["config"]["experts"] == 8


def test_text(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral)]) == 0
    text = capsys.readouterr().out
    assert "8 per layer, top 2, FFN 14336, 352 MB each" in text
    assert "total        46,702,792,704    93.4 GB" in text
    assert "worker w1   128 experts, 45.1 GB" in text


def test_without_workers(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == []


def test_no_checkpoint_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (93_400_000_000, "93.4 GB"),
        (10**18, "1e+06 TB"),
    ],
)
def test_size(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
