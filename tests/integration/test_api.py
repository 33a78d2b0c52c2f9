"""`from colibri import Colibri`: the answers of every other way to ask, and workers that end with it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from colibri import ChatMessage, ClusterOptions, Colibri, EngineOptions, GpuOptions, PinningOptions
from colibri.client import Client, RequestOptions
from colibri.errors import (
    CheckpointError,
    ColibriError,
    ConfigError,
    DeadlineExpired,
    InvalidInput,
    ShuttingDown,
)
from colibri.generation import Finished, FinishReason, Tokens
from colibri.models.random_mixtral import random_mixtral
from tests.conftest import TINY
from tests.integration.test_chat import TEMPLATE
from tests.support.clusters import BACKEND, eventually, is_alive
from tests.support.serving import serving

PROMPT = "The capital of France is"
OPTIONS: RequestOptions = {"max_tokens": 12, "seed": 7, "ignore_eos": True}
LONG: RequestOptions = {"max_tokens": 8000, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = random_mixtral(tmp_path_factory.mktemp("api") / "m", replace(TINY, max_positions=16384))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def model(chatty: Path) -> Iterator[Colibri]:
    """Without workers; where they matter, a test starts its own."""
    with Colibri(chatty, workers=0) as found:
        yield found


def pids(model: Colibri) -> list[int]:
    launcher = model._deployment.launcher
    assert launcher is not None
    return [status.pid for status in launcher.status()]


def test_the_same_bits_as_every_other_way_to_ask(model: Colibri, chatty: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "colibri.cli.main", "generate", str(chatty), "--workers=0", "--json"]
    command += [f"--prompt={PROMPT}", "--max-tokens=12", "--seed=7", "--ignore-eos", f"--backend={BACKEND}"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    expected = json.loads(told)
    answers = {"no workers": model.generate(PROMPT, **OPTIONS)}
    with Colibri(chatty, workers=2) as two:
        assert two.workers == ["w0", "w1"]
        answers["two workers"] = two.generate(PROMPT, **OPTIONS)
        answers["two workers, asyncio"] = asyncio.run(two.agenerate(PROMPT, **OPTIONS))
    with serving(chatty, tmp_path, "--workers=2") as serve, Client(serve.target) as client:
        answers["the gRPC client"] = client.generate(PROMPT, **OPTIONS).answer()
    for way, answer in answers.items():
        assert [f"{receipt:016x}" for receipt in answer.receipts] == expected["receipts"], way
        assert (answer.text, answer.ids) == (expected["text"], expected["ids"]), way
        assert answer.finished is not None
        assert answer.finished.engine_numerics_id == expected["engine_numerics_id"], way


def test_an_answer_as_it_comes(model: Colibri) -> None:
    whole = model.generate(PROMPT, **OPTIONS)
    with model.stream(PROMPT, **OPTIONS) as stream:
        events = list(stream)
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, Tokens)) == whole.text
    assert "".join(model.stream(PROMPT, **OPTIONS).text()) == whole.text
    two = model.stream(PROMPT, n=2, max_tokens=12, seed=7, ignore_eos=True).answers()
    assert [each.choice for each in two] == [0, 1]
    assert two[0].receipts == whole.receipts


def test_a_conversation(model: Colibri) -> None:
    short = model.chat("Hello", **OPTIONS)
    assert model.chat([ChatMessage("user", "Hello")], **OPTIONS) == short
    assert model.stream_chat([{"role": "user", "content": "Hello"}], **OPTIONS).answer() == short
    assert model.generate("<user>Hello\n<assistant>", **OPTIONS).ids != []
    with pytest.raises(InvalidInput, match="messages: expected"):
        model.chat([{"role": "user"}])


def test_asyncio_runs_answers_side_by_side(model: Colibri) -> None:
    expected = [model.chat(f"Question {number}", **OPTIONS).receipts for number in range(8)]

    async def ask() -> list[list[int]]:
        asked = [model.achat(f"Question {number}", **OPTIONS) for number in range(8)]
        return [answer.receipts for answer in await asyncio.gather(*asked)]

    async def pieces() -> str:
        return "".join([piece async for piece in model.astream_chat("Question 0", **OPTIONS).text()])

    assert asyncio.run(ask()) == expected
    assert asyncio.run(pieces()) == model.chat("Question 0", **OPTIONS).text


def test_a_running_event_loop_is_no_obstacle(model: Colibri, chatty: Path) -> None:
    """As in a notebook, whose cells run within a loop."""

    async def cell() -> None:
        assert (
            model.generate(PROMPT, **OPTIONS).receipts == (await model.agenerate(PROMPT, **OPTIONS)).receipts
        )
        with Colibri(chatty, workers=1) as other:
            assert other.chat("Hello", **OPTIONS).receipts == model.chat("Hello", **OPTIONS).receipts

    asyncio.run(cell())


def idle(model: Colibri) -> bool:
    return model._deployment.engine.stats().running == 0


def test_a_cancelled_task_aborts_its_answer(model: Colibri) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(model.agenerate(PROMPT, **LONG))
        while idle(model):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancel(), 60))
    eventually(lambda: idle(model), 10.0, "the engine has nothing to do")


def left(model: Colibri) -> None:
    for _ in model.stream(PROMPT, **LONG).text():
        break


def dropped(model: Colibri) -> None:
    next(model.stream(PROMPT, **LONG))


@pytest.mark.parametrize("leave", [left, dropped])
def test_a_stream_that_is_left_ends(model: Colibri, leave: Callable[[Colibri], None]) -> None:
    leave(model)
    gc.collect()
    eventually(lambda: idle(model), 10.0, "the engine has nothing to do")


def test_closing_a_stream_ends_it_with_abort(model: Colibri) -> None:
    stream = model.stream(PROMPT, **LONG)
    assert not isinstance(next(stream), Finished)
    stream.close()
    finished = stream.answer().finished
    assert finished is not None
    assert finished.reason is FinishReason.ABORT


def test_time_is_a_bound(model: Colibri) -> None:
    with pytest.raises(DeadlineExpired, match="its time ended"):
        model.generate(PROMPT, timeout_s=0.2, **LONG)
    with pytest.raises(InvalidInput, match="timeout_s: expected seconds above 0"):
        model.generate(PROMPT, timeout_s=0)


def test_what_ended_a_stream_ends_it_again(model: Colibri) -> None:
    stream = model.stream(PROMPT, timeout_s=0.2, **LONG)
    for _ in range(2):
        with pytest.raises(DeadlineExpired):
            stream.answer()


def test_the_callers_thread_keeps_its_cpus(chatty: Path) -> None:
    before = os.sched_getaffinity(0)
    with Colibri(chatty, workers=1, pinning=PinningOptions(share=True, cpu_threads=(1,))):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_closing_ends_workers_and_answers(chatty: Path) -> None:
    threads = threading.active_count()
    with Colibri(chatty, workers=2) as model:
        workers = pids(model)
        assert all(map(is_alive, workers))
        stream = model.stream(PROMPT, **LONG)
        next(stream)
    assert not any(map(is_alive, workers))
    with pytest.raises(ShuttingDown):
        stream.answer()
    with pytest.raises(ShuttingDown, match="this Colibri is closed"):
        model.generate(PROMPT)
    with pytest.raises(ShuttingDown, match="this Colibri is closed"):
        asyncio.run(model.agenerate(PROMPT))
    model.close()
    eventually(lambda: threading.active_count() <= threads, 20.0, "its threads have ended")


def test_workers_end_with_the_last_reference(chatty: Path) -> None:
    model = Colibri(chatty, workers=1)
    workers = pids(model)
    del model
    gc.collect()
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("end", ["", "raise ValueError('as it happens')", "sys.exit(3)", "os._exit(4)"])
def test_workers_end_with_the_interpreter(chatty: Path, end: str) -> None:
    """However it ends; an unread stream and a Colibri that nobody closed are no obstacle."""
    program = (
        "import os, sys\n"
        "from colibri import Colibri\n"
        "if __name__ == '__main__':\n"
        f"    model = Colibri({str(chatty)!r}, workers=1)\n"
        f"    stream = model.stream({PROMPT!r}, max_tokens=8000, ignore_eos=True)\n"
        "    next(stream)\n"
        "    print(*[status.pid for status in model._deployment.launcher.status()], flush=True)\n"
        f"    {end}\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    (worker,) = map(int, result.stdout.split())
    assert result.returncode == {"": 0, "sys.exit(3)": 3, "os._exit(4)": 4}.get(end, 1), result.stderr
    assert ("ValueError" in result.stderr) == ("ValueError" in end)
    eventually(lambda: not is_alive(worker), 10.0, "the worker has ended")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"workers": -1}, ConfigError, "workers: expected a whole number from 0 to 256, got -1"),
        ({"workers": "2"}, ConfigError, "workers: expected a whole number from 0 to 256, got '2'"),
        (
            {"workers": 1, "replicas": 2},
            ConfigError,
            r"replicas: expected at most 1 \(the number of workers\)",
        ),
        ({"compute_mode": "int3"}, ConfigError, "compute_mode: expected one of None, fp32, bf16, got 'int3'"),
        ({"backend": "tpu"}, ConfigError, "backend: expected one of cpu, reference"),
        ({"transport": "pigeon"}, ConfigError, "transport: expected one of unix, tcp, got 'pigeon'"),
        ({"link": "string"}, InvalidInput, "link: expected one of auto, grpc, shared-memory, got 'string'"),
        ({"threads": 0}, ConfigError, "threads: expected a whole number from 1 to 1024"),
        ({"start_timeout_s": 0}, ConfigError, "start_timeout_s: expected seconds above 0"),
        (
            {"pinning": PinningOptions(numa_nodes=(0, 0, 0)), "workers": 2},
            ConfigError,
            "pinning.numa_nodes: expected one value, or one for each of 2 workers",
        ),
        (
            {"cluster": ClusterOptions(gpu=GpuOptions(block_size=64))},
            ConfigError,
            "cluster.gpu.block_size: expected a GPU by pinning.devices, got cpu",
        ),
    ],
)
def test_what_it_refuses(
    chatty: Path, arguments: dict[str, object], error: type[ColibriError], text: str
) -> None:
    children = threading.active_count()
    with pytest.raises(error, match=text) as caught:
        Colibri(chatty, **arguments)  # type: ignore[arg-type]
    assert "--" not in str(caught.value)
    eventually(lambda: threading.active_count() <= children, 10.0, "nothing is left running")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Colibri(tmp_path / "nowhere")


def test_requests_that_do_not_fit(model: Colibri) -> None:
    with pytest.raises(InvalidInput, match=r"n: expected 1; several answers come from stream"):
        model.generate(PROMPT, n=2)
    with pytest.raises(InvalidInput, match="top_p: expected"):
        model.generate(PROMPT, top_p=2.0)
    with pytest.raises(InvalidInput, match="top_p: expected"):
        asyncio.run(model.agenerate(PROMPT, top_p=2.0))
    with pytest.raises(InvalidInput, match="token_ids"):
        model.generate([TINY.vocab + 7])


def test_options_of_the_engine_reach_it(chatty: Path) -> None:
    with (
        Colibri(chatty, workers=0, engine=EngineOptions(kv_tokens=64)) as small,
        pytest.raises(InvalidInput, match=r"max_tokens: expected 1 to \d+ \(context 64 less"),
    ):
        small.generate(PROMPT, max_tokens=100)
