"""The demo model in fp32 mode against transformers' greedy tokens (tests/golden/demo_fp32.json, no torch needed)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.core.demo_agreement import GOLDEN, prompt_ids
from benchmarks.core.local_stack import LocalStack
from colibri.kernels.api import ComputeMode

ROWS = json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def stack(demo_model: Path) -> Iterator[LocalStack]:
    with LocalStack(demo_model, ComputeMode.FP32) as opened:
        yield opened


def test_prompts_encode_as_they_did(demo_model: Path) -> None:
    assert prompt_ids(demo_model) == [row["ids"] for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=[row["prompt"][:20] for row in ROWS])
def test_greedy_tokens_where_the_margin_is_clear(stack: LocalStack, row: dict[str, list[int]]) -> None:
    prompt, answer = row["ids"], row["answer"]
    logits = stack.logits([*prompt, *answer])[len(prompt) - 1 : -1]
    clear = [i for i, flag in enumerate(row["clear"]) if flag]
    assert len(clear) >= len(answer) // 2
    assert [int(logits[i].argmax()) for i in clear] == [answer[i] for i in clear]
