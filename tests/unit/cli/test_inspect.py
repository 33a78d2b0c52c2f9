"""`colibri inspect` over a sparse folder of Mixtral-8x7B's shapes: everything but the weights is real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colibri.cli.main import main
from colibri.deployment.sizes import size
from colibri.models.random_mixtral import MIXTRAL_8X7B, random_mixtral, sparse_mixtral
from tests.conftest import TINY
from tests.support.packs import pack


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
    assert found["loaded_nbytes"] == dict.fromkeys(("bf16", "fp32"), 2 * 46_702_792_704)
    assert found["compute_mode"] == "bf16"
    assert found["numerics"]["bf16"]["expert_numerics_id"] == "cpu/bf16/w=bf16/wire=bf16/any/r1"
    groups = {group["name"]: (group["shape"], group["count"]) for group in found["tensors"]}
    assert groups["model.layers.*.block_sparse_moe.experts.*.w1.weight"] == ([14336, 4096], 256)
    assert groups["model.layers.*.self_attn.k_proj.weight"] == ([1024, 4096], 32)
    assert groups["lm_head.weight"] == ([32000, 4096], 1)
    assert len(found["model_hash"]) == 32


def test_text(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral)]) == 0
    text = capsys.readouterr().out
    assert "8 per layer, top 2, FFN 14336, 352 MB each" in text
    assert "total        46,702,792,704    93.4 GB" in text
    assert (
        "worker w1   128 experts, 45.1 GB stored; loaded 45.1 GB in fp32 mode, 45.1 GB in bf16 mode" in text
    )
    assert "  KV cache   262 kB per token in fp32 mode, 131 kB per token in bf16 mode" in text
    assert "4.29 GB for a whole context of 32768 tokens" in text
    assert "engine   cpu/bf16/w=bf16/wire=bf16/any/r1+dense=bf16/kv=bf16/gate=fp32" in text


def test_without_workers(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == []


def test_replicas(mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(mixtral), "--workers=3", "--replicas=2", "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["workers"]
    assert sum(share["experts"] for share in shares) == 2 * 32 * 8
    assert main(["inspect", str(mixtral), "--workers=2", "--replicas=3"]) == 1
    assert "replicas: expected 1 to 2" in capsys.readouterr().err


def tiny(folder: Path, dtype: str = "bf16") -> Path:
    return random_mixtral(folder, replace(TINY, layers=1, dtype=dtype))


def inspected(capsys: pytest.CaptureFixture[str], model: Path, *argv: str) -> dict[str, Any]:
    assert main(["inspect", str(model), "--json", *argv]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_text_side_with_its_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(tmp_path / "m")
    generation = {"do_sample": True, "temperature": 0.5, "eos_token_id": [3, 4], "num_beams": 4}
    (model / "generation_config.json").write_text(json.dumps(generation))
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    found = inspected(capsys, model)
    assert found["tokenizer"]["source"] == "tokenizer.json"
    assert found["tokenizer"]["vocab"] <= TINY.vocab
    assert found["chat_template"] == "chat_template.jinja"
    assert found["generation"]["temperature"] == {"value": 0.5, "source": "generation_config.json"}
    assert found["generation"]["top_k"] == {"value": 0, "source": "built-in default"}
    assert found["generation"]["eos"] == {"value": [3, 4], "source": "generation_config.json"}
    assert any("without effect: num_beams" in warning for warning in found["warnings"])
    assert main(["inspect", str(model)]) == 0
    out = capsys.readouterr().out
    assert "  chat template  chat_template.jinja\n" in out
    assert "  temperature        0.5  (generation_config.json)\n" in out
    assert "  warning: generation_config.json: not supported, so without effect: num_beams\n" in out


def test_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(tmp_path / "m", "fp16")
    (model / "tokenizer.json").unlink()
    found = inspected(capsys, model, "--workers=20")
    assert found["tokenizer"] is None
    text = "\n".join(found["warnings"])
    assert "no tokenizer.json: prompts and answers are token ids only" in text
    assert "weights are fp16, so the compute mode is fp32" in text
    assert "more workers than experts: w8, w9" in text
    assert found["compute_mode"] == "fp32"
    # fp16 weights stay as they are in fp32 mode, and become bf16 in bf16 mode.
    assert found["numerics"]["fp32"]["expert_numerics_id"].startswith("cpu/fp32/w=fp16/")
    (model / "tokenizer.json").write_text("{}")
    assert any("the tokenizer cannot be used" in warning for warning in inspected(capsys, model)["warnings"])


def test_a_broken_template_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(tmp_path / "m")
    (model / "chat_template.jinja").write_text("{% for %}")
    assert any("the chat template cannot be used" in line for line in inspected(capsys, model)["warnings"])


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


def test_a_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = pack(tiny(tmp_path / "model"), tmp_path / "pack", "int4g32", "fp32")
    found = inspected(capsys, made.folder)
    stored = sum((made.folder / name).stat().st_size for name in made.manifest.weights)
    heads = sum(entry.head_bytes for entry in made.manifest.weights.values())
    assert sum(found["nbytes"].values()) == stored - heads
    assert found["pack"] == {
        "pack_hash": made.pack_hash,
        "experts": "int4g32",
        "dense": "fp32",
        "calibration": None,
    }
    assert list(found["numerics"]) == ["fp32"]
    assert found["numerics"]["fp32"]["expert_numerics_id"] == "cpu/int8/w=int4g32/wire=fp32/any/r1"
    assert found["model_hash"] == inspected(capsys, tmp_path / "model")["model_hash"]
    assert main(["inspect", str(made.folder)]) == 0
    text = capsys.readouterr().out
    assert f"  pack       {made.pack_hash}, dense part in fp32, not calibrated" in text
    assert "stored as int4g32" in text
