"""The OpenAI target against a real HTTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.lengths import Fixed, Uniform
from colibri.bench.load.metrics import measure
from colibri.bench.load.prompts import RandomIds
from colibri.bench.load.result import RunLimits, RunResult
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.openai_http import OpenAITarget, PromptForm
from colibri.bench.load.workload import SamplingSpec, Workload, drawn
from colibri.errors import ConfigError, WorkerLost
from tests.support.openai_server import OpenAIServer, openai_server

WAIT_S = 20.0
TOKENS = 5


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as running:
        yield running


def ask(
    server: OpenAIServer,
    form: PromptForm = PromptForm.IDS,
    requests: int = 1,
    users: int = 1,
    timeout_s: float = WAIT_S,
    ignore_eos: bool = True,
    api_key: str | None = None,
) -> RunResult:
    workload = Workload(
        RandomIds(100),
        drawn(Uniform(2, 6), Fixed(TOKENS)),
        seed=1,
        sampling=SamplingSpec(temperature=0.5, top_k=7),
        ignore_eos=ignore_eos,
        spell=lambda ids: " ".join(map(str, ids)),
    )
    limits = RunLimits(request_timeout_s=timeout_s, drain_s=WAIT_S)
    target = OpenAITarget(server.url, "tiny", form, api_key=api_key)
    with LoadRun(target, workload, ClosedLoop(users, requests=requests), limits) as run:
        return run.wait(WAIT_S)


@pytest.mark.parametrize("form", list(PromptForm))
def test_answers(server: OpenAIServer, form: PromptForm) -> None:
    result = ask(server, form, requests=6, users=3)
    for record in result.records:
        assert record.failure is None
        assert record.finish_reason == "length"
        # Empty chunks (a chat's role, the last one) are no arrivals; the usage counts tokens.
        assert len(record.token_times) == TOKENS
        assert record.output_tokens == TOKENS + 1
        assert record.prompt_tokens == len(record.request.prompt_ids)
        assert record.ids == ()
    metrics = measure(result)
    assert metrics.completed == 6
    assert metrics.total_output_tokens == 6 * (TOKENS + 1)
    assert set(server.paths) == {"/v1/chat/completions" if form is PromptForm.CHAT else "/v1/completions"}


def test_what_is_sent(server: OpenAIServer) -> None:
    [record] = ask(server, api_key="secret").records
    request = record.request
    assert server.bodies == [
        {
            "model": "tiny",
            "max_tokens": TOKENS,
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": 7,
            "seed": request.seed % (1 << 31),
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "prompt": list(request.prompt_ids),
        }
    ]
    assert server.keys == ["Bearer secret"]
    ask(server, PromptForm.CHAT, ignore_eos=False)
    assert server.bodies[1]["messages"] == [{"role": "user", "content": record.request.prompt_text}]
    assert "ignore_eos" not in server.bodies[1]


@pytest.mark.parametrize(
    ("behave", "kind", "message", "tokens", "retryable"),
    [
        ("busy", "HTTP 429", "too many", 0, True),
        ("broken", "HTTP 500", "it broke", 0, False),
        ("error", "stream error", "out of memory", 2, False),
        ("cut", "WorkerLost", "without a finish_reason", 2, True),
        ("nonsense", "FrameError", "a chunk that is none", 2, True),
        ("no-stream", "FrameError", "expected text/event-stream", 0, True),
    ],
)
def test_failures_by_kind(
    server: OpenAIServer, behave: str, kind: str, message: str, tokens: int, retryable: bool
) -> None:
    server.behave = behave
    [record] = ask(server).records
    assert record.failure is not None
    assert record.failure.kind == kind
    assert message in record.failure.message
    assert record.failure.retryable is retryable
    assert record.failure.retry_after_s == (2.0 if behave == "busy" else None)
    assert len(record.token_times) == tokens
    assert measure(ask(server)).errors == {kind: 1}


def test_a_silent_server_costs_the_timeout(server: OpenAIServer) -> None:
    server.behave = "silent"
    [record] = ask(server, timeout_s=0.5).records
    assert record.failure is not None
    assert record.failure.kind == "DeadlineExpired"
    assert len(record.token_times) == 1


def test_nobody_there() -> None:
    with openai_server() as gone:
        pass
    with pytest.raises(WorkerLost, match=gone.url):
        ask(gone)


@pytest.mark.parametrize("url", ["host:80", "ftp://host/v1", "http://", ""])
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="url: expected"):
        OpenAITarget(url, "m", PromptForm.IDS)
