"""Everything that GenerateRequest can ask for, over a real socket: plain protobuf, as any language sends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from colibri.coordinator.engine import EngineOptions
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc
from tests.support.served import Served, serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, idle, make_tiny, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=32, kv_tokens=4096, max_running=8, max_queued=4)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no such role: ' + m.role) }}{% endif %}"
    "{% if m.content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HELLO = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello é")])
Stub = generation_pb2_grpc.GenerationStub


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("cpu", threads=2)
    folder = make_tiny(tmp_path_factory.mktemp("options") / "m", replace(TINY, layers=1))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1,'
        ' "max_new_tokens": 12, "eos_token_id": [2, 5], "num_beams": 4}'
    )
    opened = TinyModel.open(folder, backend, ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
    backend.close()


@pytest.fixture(scope="module")
def served(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(model, tmp_path_factory.mktemp("s"), OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def stub(served: Served) -> Iterator[Stub]:
    with grpc.insecure_channel(served.target) as channel:
        yield Stub(channel)


def ask(stub: Stub, **fields: object) -> list[pb.GenerateReply]:
    fields.setdefault("token_ids", pb.TokenIds(ids=[1, *range(30, 60)]))
    if "text" in fields or "chat" in fields:
        del fields["token_ids"]
    return list(stub.Generate(pb.GenerateRequest(**fields), timeout=WAIT_S))  # type: ignore[arg-type]


def ids_of(replies: list[pb.GenerateReply], choice: int = 0) -> list[int]:
    return [
        each for r in replies if r.HasField("tokens") and r.tokens.choice == choice for each in r.tokens.ids
    ]


def text_of(replies: list[pb.GenerateReply]) -> str:
    return "".join(reply.tokens.text for reply in replies if reply.HasField("tokens"))


def refusal(stub: Stub, **fields: object) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        ask(stub, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


GREEDY = pb.Sampling(temperature=0, repetition_penalty=1)


class TestChat:
    def test_it_is_the_rendered_prompt_with_one_bos(self, model: TinyModel, stub: Stub) -> None:
        replies = ask(stub, chat=HELLO, echo=True, sampling=GREEDY)
        text = "<s>[user]hello é</s>[assistant]"
        ids = model.tokenizer.encode(text, add_special=False)
        assert model.tokenizer.bos is not None
        assert ids.count(model.tokenizer.bos) == 1
        assert (list(replies[1].prompt.ids), replies[1].prompt.text) == (ids, text)
        assert replies[0].accepted.prompt_tokens == len(ids)
        same = ask(stub, token_ids=pb.TokenIds(ids=ids), sampling=GREEDY)
        assert ids_of(replies) == ids_of(same)

    def test_without_the_generation_prompt(self, stub: Stub) -> None:
        chat = pb.Chat(messages=HELLO.messages, add_generation_prompt=False)
        assert ask(stub, chat=chat, echo=True)[1].prompt.text == "<s>[user]hello é</s>"

    def test_refusals(self, stub: Stub, served: Served) -> None:
        assert refusal(stub, chat=pb.Chat()) == "chat.messages: expected 1 to 16384 messages, got 0"
        wrong = pb.Chat(messages=[pb.ChatMessage(role="tool", content="x")])
        assert refusal(stub, chat=wrong).endswith("got its error: no such role: tool")
        large = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * (1 << 20))] * 2)
        assert refusal(stub, chat=large).startswith(
            "chat.messages: expected at most 1048576 bytes, got 2097160"
        )
        long = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * 600)])
        assert "chat: expected at most 511 tokens" in refusal(stub, chat=long)
        begun = time.monotonic()
        endless = pb.Chat(messages=[pb.ChatMessage(role="user", content="loop")])
        assert "renders within 2 s" in refusal(stub, chat=endless)
        assert time.monotonic() - begun < 60
        assert ids_of(ask(stub, chat=HELLO))
        assert idle(served.engine)


class TestShape:
    def test_choices_finish_each(self, stub: Stub) -> None:
        replies = ask(stub, n=3, sampling=pb.Sampling(temperature=1.5, seed=4))
        ends = [reply.finished for reply in replies if reply.HasField("finished")]
        assert sorted(end.choice for end in ends) == [0, 1, 2]
        for end in ends:
            ids = ids_of(replies, end.choice)
            assert end.usage.completion_tokens == len(ids)
            assert end.usage.total_tokens == 31 + len(ids)
            assert end.seed == 4
        assert replies[-1].HasField("finished")

    def test_logprobs_and_echo(self, stub: Stub) -> None:
        replies = ask(stub, echo=True, logprobs=2, sampling=GREEDY)
        prompt = replies[1].prompt
        assert len(prompt.logprobs) == len(prompt.ids) == 31
        assert prompt.logprobs[0] == pb.TokenLogprobs()
        scored = [each for reply in replies for each in reply.tokens.logprobs]
        assert len(scored) == len(ids_of(replies))
        for each, token in zip(scored, ids_of(replies), strict=True):
            assert each.top_ids[0] == token, "greedy"
            assert each.top_logprobs[0] == each.logprob <= 0
            assert len(each.top_ids) == len(each.top_logprobs) == 2

    def test_stop_string(self, stub: Stub) -> None:
        sampling = pb.Sampling(temperature=1.5, seed=9, repetition_penalty=1)
        free = ask(stub, sampling=sampling, stopping=pb.Stopping(max_tokens=60, ignore_eos=True))
        stop = text_of(free)[4:7]
        replies = ask(
            stub, sampling=sampling, stopping=pb.Stopping(max_tokens=60, ignore_eos=True, stop=[stop])
        )
        assert text_of(replies) == text_of(free)[: text_of(free).index(stop)]
        end = replies[-1].finished
        assert (end.reason, end.stop_string, end.stop_id) == (pb.FINISH_REASON_STOP, stop, 0)

    def test_min_tokens(self, stub: Stub) -> None:
        stopping = pb.Stopping(max_tokens=9, min_tokens=9, stop_ids=list(range(3, 40)))
        replies = ask(stub, sampling=GREEDY, stopping=stopping)
        assert len(ids_of(replies)) == 9
        assert not set(ids_of(replies)) & {2, 5, *range(3, 40)}
        assert replies[-1].finished.reason == pb.FINISH_REASON_LENGTH

    def test_resume_of_a_choice_and_of_a_complete_answer(self, stub: Stub) -> None:
        sampling = pb.Sampling(temperature=1.5, seed=4)
        whole = ask(stub, n=2, sampling=sampling, logprobs=1)
        ids = ids_of(whole, 1)
        receipts = [
            each for r in whole if r.HasField("tokens") and r.tokens.choice == 1 for each in r.tokens.receipts
        ]
        end = next(r.finished for r in whole if r.HasField("finished") and r.finished.choice == 1)
        for cut in (1, len(ids) - 1, len(ids)):
            resume = pb.Resume(generated_ids=ids[:cut], receipt=receipts[cut - 1], choice=1)
            rest = ask(stub, sampling=sampling, resume=resume)
            assert ids_of(rest, 1) == ids[cut:]
            assert rest[-1].finished == end


class TestTokens:
    def test_tokenize_as_generate_encodes(self, model: TinyModel, stub: Stub) -> None:
        reply = stub.Tokenize(pb.TokenizeRequest(text="hé 🌍"), timeout=WAIT_S)
        assert list(reply.ids) == model.tokenizer.encode("hé 🌍")
        assert list(reply.pieces)[:3] == ["<s>", "h", "\ufffd"]
        plain = stub.Tokenize(pb.TokenizeRequest(text="hé", add_special=False), timeout=WAIT_S)
        assert list(plain.ids) == model.tokenizer.encode("hé", add_special=False)
        chat = stub.Tokenize(pb.TokenizeRequest(chat=HELLO), timeout=WAIT_S)
        assert list(chat.ids) == list(ask(stub, chat=HELLO, echo=True)[1].prompt.ids)
        assert list(stub.Tokenize(pb.TokenizeRequest(text="", add_special=False), timeout=WAIT_S).ids) == []

    def test_detokenize(self, model: TinyModel, stub: Stub) -> None:
        ids = model.tokenizer.encode("hé 🌍")
        for skip, text in ((True, "hé 🌍"), (False, "<s>hé 🌍")):
            reply = stub.Detokenize(pb.DetokenizeRequest(ids=ids, skip_special=skip), timeout=WAIT_S)
            assert reply.text == text

    def test_refusals(self, stub: Stub) -> None:
        for request, message in (
            (pb.TokenizeRequest(), "input: expected text or chat, got neither"),
            (pb.TokenizeRequest(chat=HELLO, add_special=True), "add_special: expected unset with a chat"),
            (pb.TokenizeRequest(text="x" * ((1 << 20) + 1)), "text: expected at most 1048576 bytes"),
            (
                pb.TokenizeRequest(text="x" * (1 << 20)),
                "text: expected what makes a reply of at most 4194304",
            ),
        ):
            with pytest.raises(grpc.RpcError, match=message):
                stub.Tokenize(request, timeout=WAIT_S)
        with pytest.raises(grpc.RpcError, match=r"ids\[1\]: expected a token id from 0 to 299, got 300"):
            stub.Detokenize(pb.DetokenizeRequest(ids=[1, 300]), timeout=WAIT_S)


class TestDefaults:
    def test_they_are_shown(self, stub: Stub) -> None:
        info = stub.ModelInfo(pb.ModelInfoRequest(), timeout=WAIT_S)
        assert (info.has_tokenizer, info.has_chat_template) == (True, True)
        defaults = info.defaults
        sampling = defaults.sampling
        assert [
            round(value, 5)
            for value in (sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty)
        ] == [0.7, 0.9, 0.05, 1.1]
        assert (sampling.top_k, defaults.max_tokens, list(defaults.stop_ids)) == (0, 12, [2, 5])
        assert defaults.sources["min_p"] == "generation_config.json"
        assert defaults.sources["top_k"] == "built-in default"
        assert list(defaults.ignored) == ["num_beams"]

    def test_they_are_honoured(self, stub: Stub) -> None:
        """Saying nothing is saying just what ModelInfo shows."""
        defaults = stub.ModelInfo(pb.ModelInfoRequest(), timeout=WAIT_S).defaults
        said = pb.Sampling(seed=77)
        said.MergeFrom(defaults.sampling)
        stopping = pb.Stopping(max_tokens=defaults.max_tokens, stop_ids=defaults.stop_ids, ignore_eos=True)
        unsaid = ask(stub, sampling=pb.Sampling(seed=77))
        assert ids_of(unsaid) == ids_of(ask(stub, sampling=said, stopping=stopping))
        assert ids_of(unsaid) != ids_of(ask(stub, sampling=GREEDY))
        assert len(ids_of(unsaid)) <= 12


def test_abort_ends_every_choice(model: TinyModel, tmp_path: Path) -> None:
    turnstile = Turnstile(model.router)
    with (
        serve(model, tmp_path, OPTIONS, turnstile) as served,
        grpc.insecure_channel(served.target) as channel,
    ):
        stub = Stub(channel)
        request = pb.GenerateRequest(
            request_id="q",
            n=3,
            token_ids=pb.TokenIds(ids=[1, 7]),
            stopping=pb.Stopping(max_tokens=400, ignore_eos=True, stop=["\u0001never"]),
        )
        call = stub.Generate(request, timeout=WAIT_S)
        turnstile.let(3)
        for _ in range(4):
            turnstile.wait_step()
        assert stub.Abort(pb.AbortRequest(request_id="q"), timeout=WAIT_S).found
        turnstile.open()
        replies = list(call)
        ends = [reply.finished for reply in replies if reply.HasField("finished")]
        assert [end.reason for end in ends] == [pb.FINISH_REASON_ABORT] * 3
        assert [len(ids_of(replies, end.choice)) for end in ends] == [e.usage.completion_tokens for e in ends]
        wait_for("the pages", lambda: idle(served.engine))
