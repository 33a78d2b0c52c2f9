"""Every field of GenerateRequest: what is right becomes a request, what is wrong is named precisely."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from colibri.coordinator.penalties import Penalties
from colibri.coordinator.replies import to_reply
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.validation.fields import checked_ids
from colibri.coordinator.validation.requests import Draws, RequestLimits, to_request
from colibri.deadline import Deadline
from colibri.errors import Code, InvalidInput
from colibri.generation import Prompt, TokenLogprobs
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.models.generation_config import GenerationDefaults
from colibri.v1 import generation_pb2 as pb
from tests.support.tiny_engine import TinyModel

VOCAB, CONTEXT = 300, 64
DEFAULTS = GenerationDefaults(
    temperature=0.5, top_p=0.9, top_k=40, max_new_tokens=None, eos=(2, 5), sources={}, ignored=()
)
DEADLINE = Deadline.after(3600.0)
DRAWS = Draws(seed=lambda: 2**64 - 1, request_id=lambda: "drawn")


def convert(
    change: Callable[[pb.GenerateRequest], object] = lambda m: None,
    *,
    model: TinyModel | None = None,
    context: int = CONTEXT,
    defaults: GenerationDefaults = DEFAULTS,
) -> GenerationRequest:
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 7, 9]))
    change(message)
    limits = RequestLimits(VOCAB, context, defaults)
    return to_request(message, limits, model.tokenizer if model else None, DEADLINE, DRAWS)


def fields(**values: object) -> Callable[[pb.GenerateRequest], object]:
    """Merges a message made of `values` over the valid one."""

    def change(message: pb.GenerateRequest) -> None:
        message.MergeFrom(pb.GenerateRequest(**values))  # type: ignore[arg-type]

    return change


def sampling(**values: float) -> Callable[[pb.GenerateRequest], object]:
    return fields(sampling=pb.Sampling(**values))  # type: ignore[arg-type]


def stopping(**values: object) -> Callable[[pb.GenerateRequest], object]:
    return fields(stopping=pb.Stopping(**values))  # type: ignore[arg-type]


def resuming(ids: list[int], receipt: int = 1, **more: object) -> Callable[[pb.GenerateRequest], object]:
    return fields(resume=pb.Resume(generated_ids=ids, receipt=receipt), sampling=pb.Sampling(seed=1), **more)


BAD = [
    (
        fields(request_id="a b"),
        "request_id: expected 0 to 128 printable ASCII characters without spaces, got 'a b'",
    ),
    (fields(request_id="ä"), "request_id: expected 0 to 128 printable"),
    (fields(request_id="x" * 129), "request_id: expected 0 to 128 printable"),
    (fields(request_id="a\n"), "request_id: expected 0 to 128 printable"),
    (fields(priority=1001), "priority: expected 0 to 1000, got 1001"),
    (lambda m: m.ClearField("prompt"), "prompt: expected text, token_ids or chat, got none of them"),
    (lambda m: m.token_ids.ClearField("ids"), "token_ids.ids: expected at least one token, got none"),
    (lambda m: m.token_ids.ids.append(300), "token_ids.ids[3]: expected a token id from 0 to 299, got 300"),
    (
        lambda m: m.token_ids.ids.append(2**32 - 1),
        "token_ids.ids[3]: expected a token id from 0 to 299, got 4294967295",
    ),
    (
        lambda m: m.token_ids.ids.extend([1] * 61),
        "token_ids.ids: expected at most 63 tokens (the context holds 64), got 64 tokens",
    ),
    (fields(text="hello"), "prompt: expected token_ids, since this model has no tokenizer, got text"),
    (sampling(temperature=-0.1), "sampling.temperature: expected 0, or 1e-06 to 100, got -0.1"),
    (sampling(temperature=1e-7), "sampling.temperature: expected 0, or 1e-06 to 100"),
    (sampling(temperature=100.5), "sampling.temperature: expected 0, or 1e-06 to 100, got 100.5"),
    (sampling(temperature=math.nan), "sampling.temperature: expected 0, or 1e-06 to 100, got nan"),
    (sampling(temperature=math.inf), "sampling.temperature: expected 0, or 1e-06 to 100, got inf"),
    (sampling(top_p=0.0), "sampling.top_p: expected above 0, at most 1, got 0.0"),
    (sampling(top_p=1.5), "sampling.top_p: expected above 0, at most 1, got 1.5"),
    (sampling(top_p=math.nan), "sampling.top_p: expected above 0, at most 1, got nan"),
    (sampling(top_k=301), "sampling.top_k: expected 0 to 300 (the vocabulary), got 301"),
    (
        stopping(max_tokens=0),
        "stopping.max_tokens: expected 1 to 61 (context 64 less 3 tokens of prompt), got 0",
    ),
    (
        stopping(max_tokens=62),
        "stopping.max_tokens: expected 1 to 61 (context 64 less 3 tokens of prompt), got 62",
    ),
    (stopping(max_tokens=2**32 - 1), "stopping.max_tokens: expected 1 to 61"),
    (stopping(stop_ids=[3, 300]), "stopping.stop_ids[1]: expected a token id from 0 to 299, got 300"),
    (fields(n=17), "n: expected 1 to 16, or 0 for 1, got 17"),
    (fields(n=2**32 - 1), "n: expected 1 to 16"),
    (fields(logprobs=21), "logprobs: expected 0 to 20, got 21"),
    (sampling(min_p=-0.5), "sampling.min_p: expected 0 to 1, got -0.5"),
    (sampling(min_p=1.5), "sampling.min_p: expected 0 to 1, got 1.5"),
    (sampling(min_p=math.nan), "sampling.min_p: expected 0 to 1, got nan"),
    (sampling(repetition_penalty=0.0), "sampling.repetition_penalty: expected 1e-06 to 100, got 0.0"),
    (sampling(repetition_penalty=101.0), "sampling.repetition_penalty: expected 1e-06 to 100, got 101.0"),
    (sampling(repetition_penalty=math.inf), "sampling.repetition_penalty: expected 1e-06 to 100, got inf"),
    (sampling(presence_penalty=2.5), "sampling.presence_penalty: expected -2 to 2, got 2.5"),
    (sampling(presence_penalty=math.nan), "sampling.presence_penalty: expected -2 to 2, got nan"),
    (sampling(frequency_penalty=-3.0), "sampling.frequency_penalty: expected -2 to 2, got -3.0"),
    (stopping(min_tokens=62), "stopping.min_tokens: expected 0 to 61 (max_tokens), got 62"),
    (stopping(max_tokens=5, min_tokens=6), "stopping.min_tokens: expected 0 to 5 (max_tokens), got 6"),
    (stopping(stop=["x"]), "stopping.stop: expected none, since this model has no tokenizer, got ['x']"),
    (stopping(stop=["x"] * 17), "stopping.stop: expected at most 16 strings, got 17 strings"),
    (fields(chat=pb.Chat()), "prompt: expected token_ids, since this model has no tokenizer, got chat"),
    (fields(resume=pb.Resume(choice=16)), "resume.choice: expected 0 to 15, got 16"),
    (fields(resume=pb.Resume(choice=1), n=2), "n: expected 1 where an answer is resumed, got 2"),
    (resuming([8], n=3), "n: expected 1 where an answer is resumed, got 3"),
    (
        fields(resume=pb.Resume(choice=1)),
        "sampling.seed: expected the seed of the answer that is resumed, got none",
    ),
    (
        resuming([8, 5], stopping=pb.Stopping(min_tokens=2)),
        "resume.generated_ids[1]: expected no id that ends the answer, got stop id 5",
    ),
    (stopping(stop_ids=[3] * 65), "stopping.stop_ids: expected at most 64 ids, got 65 ids"),
    (fields(resume=pb.Resume(receipt=9)), "resume.receipt: expected 0 without generated_ids, got 9"),
    (resuming([8, 300]), "resume.generated_ids[1]: expected a token id from 0 to 299, got 300"),
    (
        resuming([8] * 5, stopping=pb.Stopping(max_tokens=4)),
        "resume.generated_ids: expected at most max_tokens (4, which counts the whole answer), got 5",
    ),
    (resuming([8, 5, 8]), "resume.generated_ids[1]: expected no id that ends the answer, got stop id 5"),
    (
        fields(resume=pb.Resume(generated_ids=[8], receipt=1)),
        "sampling.seed: expected the seed of the answer that is resumed, got none",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:60] for _, message in BAD])
def test_bad_fields(change: Callable[[pb.GenerateRequest], object], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        convert(change)
    assert caught.value.message.startswith(message)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert not caught.value.retryable


def beside(bound: float, towards: float) -> float:
    """The next number of 32 bits."""
    return float(np.nextafter(np.float32(bound), np.float32(towards)))


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("temperature", 1e-6, 100.0),
        ("min_p", 0.0, 1.0),
        ("repetition_penalty", 1e-6, 100.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ],
)
def test_a_bound_is_a_number_of_its_fields_width(field: str, low: float, high: float) -> None:
    """1e-6 as a float of 32 bits is less than 1e-6 as a double."""
    for value in (low, beside(low, math.inf), beside(high, -math.inf), high):
        convert(sampling(**{field: value}))
    for value in (beside(low, -math.inf), beside(high, math.inf)):
        with pytest.raises(InvalidInput, match=f"sampling.{field}: expected "):
            convert(sampling(**{field: value}))


@pytest.mark.parametrize("value", [1e-6, 100.0])
def test_a_checkpoints_default_may_be_a_bound(value: float) -> None:
    convert(defaults=replace(DEFAULTS, temperature=value, repetition_penalty=value))


def test_unset_fields_take_the_checkpoints_defaults() -> None:
    request = convert()
    assert request.request_id == "drawn"
    assert request.prompt_ids.tolist() == [1, 7, 9]
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 40)
    assert request.sampling.top_p == float(np.float32(0.9))  # as if the client had said 0.9
    assert request.sampling.seed == 2**64 - 1
    assert request.max_tokens == CONTEXT - 3
    assert request.stop_ids == {2, 5}
    assert (len(request.resumed_ids), request.receipt, request.priority) == (0, 0, 0)
    assert request.deadline == DEADLINE
    assert request.kv_tokens == CONTEXT


def test_set_fields_win() -> None:
    request = convert(
        fields(
            request_id="a/b:1",
            sampling=pb.Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0),
            stopping=pb.Stopping(max_tokens=9, stop_ids=[4, 4], ignore_eos=True),
            resume=pb.Resume(generated_ids=[2, 3], receipt=2**64 - 1),
            priority=3,
        )
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.0, 1.0, 0, 0)
    assert (request.request_id, request.max_tokens, request.stop_ids) == ("a/b:1", 9, {4})
    assert (request.resumed_ids.tolist(), request.receipt, request.priority) == ([2, 3], 2**64 - 1, 3)


def test_everything_else() -> None:
    request = convert(
        fields(
            n=3,
            echo=True,
            logprobs=0,
            sampling=pb.Sampling(
                min_p=0.25, repetition_penalty=1.5, presence_penalty=-2, frequency_penalty=0.5
            ),
            stopping=pb.Stopping(max_tokens=20, min_tokens=20),
        )
    )
    assert (request.n, request.echo, request.logprobs, request.min_tokens) == (3, True, 0, 20)
    assert request.sampling.min_p == 0.25
    assert request.penalties == Penalties(1.5, -2.0, 0.5)
    assert [request.sampling_of(slot).choice for slot in range(3)] == [0, 1, 2]
    plain = convert()
    assert (plain.n, plain.echo, plain.logprobs, plain.stop, plain.min_tokens) == (1, False, None, (), 0)
    assert plain.penalties.off
    assert convert(fields(n=1)).n == 1


def test_defaults_of_min_p_and_repetition() -> None:
    defaults = replace(DEFAULTS, min_p=0.1, repetition_penalty=1.1)
    request = convert(defaults=defaults)
    said = convert(sampling(min_p=0.1, repetition_penalty=1.1))
    assert (request.sampling.min_p, request.penalties) == (said.sampling.min_p, said.penalties)
    off = convert(sampling(min_p=0, repetition_penalty=1), defaults=defaults)
    assert (off.sampling.min_p, off.penalties.off) == (0, True)


def test_an_echo_that_fits_no_message() -> None:
    change = fields(token_ids=pb.TokenIds(ids=[1] * 20_000), echo=True, logprobs=20)
    with pytest.raises(
        InvalidInput, match=r"echo: expected at most 15420 tokens of prompt .* got 20003 tokens"
    ):
        convert(change, context=40_000)
    assert convert(
        fields(token_ids=pb.TokenIds(ids=[1] * 20_000), echo=True, logprobs=10), context=40_000
    ).echo
    assert convert(fields(token_ids=pb.TokenIds(ids=[1] * 30_000), echo=True), context=40_000).echo


def test_the_largest_echo_fits_a_message() -> None:
    """With the longest encodings that there are."""
    prompt = 15_420
    scored = TokenLogprobs(-1.5, tuple((2**32 - 1, -2.5) for _ in range(20)))
    event = Prompt(tuple([2**32 - 1] * prompt), "x" * (1 << 20), tuple([scored] * prompt))
    assert to_reply(event).ByteSize() < CONTROL_MESSAGE_BYTES


def test_a_resumed_choice() -> None:
    request = convert(resuming([8], n=1))
    assert request.sampling.choice == 0
    resume = pb.Resume(generated_ids=[8, 9, 5], receipt=4, choice=7)
    request = convert(fields(resume=resume, sampling=pb.Sampling(seed=1)))
    assert (request.sampling.choice, request.resumed_ids.tolist()) == (7, [8, 9, 5]), "complete: ends at once"
    assert convert(fields(resume=pb.Resume(choice=7), sampling=pb.Sampling(seed=1))).sampling.choice == 7


def test_length_defaults() -> None:
    assert convert(context=5000).max_tokens == 1024
    own = GenerationDefaults(0.0, 1.0, 0, 77, (), {}, ())
    assert convert(context=5000, defaults=own).max_tokens == 77
    assert convert(context=50, defaults=own).max_tokens == 47


def test_a_checkpoints_top_k_may_exceed_the_vocabulary() -> None:
    assert convert(defaults=GenerationDefaults(1.0, 1.0, 5000, None, (), {}, ())).sampling.top_k == VOCAB


def test_greedy_answers_resume_without_a_seed() -> None:
    request = convert(
        fields(sampling=pb.Sampling(temperature=0.0), resume=pb.Resume(generated_ids=[8], receipt=1))
    )
    assert request.resumed_ids.tolist() == [8]


class TestText:
    def test_special_tokens_are_the_tokenizers(self, model: TinyModel) -> None:
        request = convert(fields(text="hi"), model=model)
        assert request.prompt_ids.tolist() == model.tokenizer.encode("hi")
        assert request.prompt_ids[0] == model.tokenizer.bos

    def test_echo_has_what_encodes_to_the_ids(self, model: TinyModel) -> None:
        assert convert(fields(text="hi"), model=model).prompt_text == "hi"
        request = convert(fields(echo=True), model=model)
        assert model.tokenizer.encode(request.prompt_text) == [1, 7, 9]
        assert convert(model=model).prompt_text == ""

    @pytest.mark.parametrize(
        ("stops", "message"),
        [
            ([""], r"stopping.stop\[0\]: expected 1 to 256 bytes, got 0 bytes"),
            (["x", "ä" * 129], r"stopping.stop\[1\]: expected 1 to 256 bytes, got 258 bytes"),
        ],
    )
    def test_stop_strings(self, model: TinyModel, stops: list[str], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            convert(stopping(stop=stops), model=model)
        assert convert(stopping(stop=["a", "b"]), model=model).stop == ("a", "b")

    def test_no_template(self, model: TinyModel) -> None:
        with pytest.raises(
            InvalidInput, match=r"prompt: expected text or token_ids, since .* no chat template"
        ):
            convert(fields(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])), model=model)

    def test_too_many_tokens(self, model: TinyModel) -> None:
        with pytest.raises(InvalidInput, match=r"text: expected at most 63 tokens .* got 101 tokens"):
            convert(fields(text="x" * 100), model=model)

    def test_too_many_bytes(self, model: TinyModel) -> None:
        with pytest.raises(InvalidInput, match=r"text: expected at most 1048576 bytes, got 1048578 bytes"):
            convert(fields(text="ä" * (2**19 + 1)), model=model)


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 9000])
def test_many_ids_are_converted_in_slices(count: int) -> None:
    ids = [(at * 7919) % 100_000 for at in range(count)]
    message = pb.TokenIds(ids=ids)
    assert checked_ids("ids", message.ids, 100_000).tolist() == ids
    if count:
        message.ids[-1] = (1 << 32) - 1
        with pytest.raises(InvalidInput) as caught:
            checked_ids("ids", message.ids, 100_000)
        assert caught.value.field == f"ids[{count - 1}]"
