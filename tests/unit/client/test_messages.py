"""Options to messages and replies to events, and what the client makes of replies that no server of ours
sends."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from colibri.client import Client, RequestOptions
from colibri.client.messages import to_chat, to_detokenize, to_event, to_model_info, to_request, to_tokenize
from colibri.coordinator.replies import to_reply
from colibri.errors import ConfigError, FrameError, InvalidInput
from colibri.generation import (
    Accepted,
    Chat,
    ChatMessage,
    Event,
    Finished,
    FinishReason,
    Prompt,
    Resume,
    SamplingOptions,
    TokenLogprobs,
    Tokens,
    Usage,
)
from colibri.v1 import generation_pb2 as pb

EVERYTHING: RequestOptions = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "seed": 2**64 - 1,
    "repetition_penalty": 1.5,
    "presence_penalty": -1.5,
    "frequency_penalty": 0.75,
    "max_tokens": 9,
    "min_tokens": 2,
    "stop": ["a", "\u00e9"],
    "stop_ids": [4, 5],
    "ignore_eos": True,
    "n": 3,
    "echo": True,
    "logprobs": 0,
    "resume": Resume((1, 2), 2**64 - 1, 5),
    "request_id": "me",
    "priority": 11,
}


def test_every_option_has_its_field() -> None:
    assert set(EVERYTHING) == set(get_type_hints(RequestOptions))
    expected = pb.GenerateRequest(
        text="hi",
        request_id="me",
        sampling=pb.Sampling(
            temperature=0.5,
            top_p=0.25,
            top_k=7,
            min_p=0.125,
            seed=2**64 - 1,
            repetition_penalty=1.5,
            presence_penalty=-1.5,
            frequency_penalty=0.75,
        ),
        stopping=pb.Stopping(
            max_tokens=9, min_tokens=2, stop=["a", "\u00e9"], stop_ids=[4, 5], ignore_eos=True
        ),
        n=3,
        echo=True,
        logprobs=0,
        resume=pb.Resume(generated_ids=[1, 2], receipt=2**64 - 1, choice=5),
        priority=11,
    )
    made = to_request("hi", **EVERYTHING)
    assert made == expected
    assert made.HasField("logprobs")
    # No field of the message is without an option.
    set_fields = {field.name for field, _ in made.ListFields()}
    assert set_fields == {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields} - {
        "token_ids",
        "chat",
    }
    for part in (made.sampling, made.stopping, made.resume):
        assert len(part.ListFields()) == len(part.DESCRIPTOR.fields)


def test_what_is_not_given_is_not_sent() -> None:
    made = to_request([3, 4])
    assert list(made.token_ids.ids) == [3, 4]
    for part, fields in ((made.sampling, 0), (made.stopping, 0)):
        assert len(part.ListFields()) == fields
    assert not made.HasField("logprobs")
    assert not made.HasField("resume")
    assert made.request_id, "an answer can be aborted before the server says its name"
    assert made.request_id != to_request([3]).request_id


def test_no_ids_are_still_a_prompt_of_ids() -> None:
    assert to_request([]).WhichOneof("prompt") == "token_ids"


def test_chat() -> None:
    chat = to_chat([{"role": "system", "content": "s"}, ChatMessage("user", "u")])
    assert chat == Chat((ChatMessage("system", "s"), ChatMessage("user", "u")))
    made = to_request(chat).chat
    assert [(m.role, m.content) for m in made.messages] == [("system", "s"), ("user", "u")]
    assert made.add_generation_prompt
    assert not to_request(Chat((), add_generation_prompt=False)).chat.add_generation_prompt
    assert to_tokenize([{"role": "user", "content": "u"}], None).chat.messages[0].content == "u"


@pytest.mark.parametrize("messages", [["hi"], [{"role": "user"}], [None], "hi"])
def test_what_is_no_message(messages: Any) -> None:
    with pytest.raises(
        InvalidInput, match="messages: expected ChatMessage, or objects with role and content"
    ):
        to_chat(messages)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": -1}, "sampling.seed: expected a whole number from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, "sampling.seed: expected a whole number from 0 to 18446744073709551615, got "),
        ({"top_k": 1.5}, "sampling.top_k: expected a whole number from 0 to 4294967295, got 1.5"),
        (
            {"max_tokens": "many"},
            "stopping.max_tokens: expected a whole number from 0 to 4294967295, got 'many'",
        ),
        ({"stop": ["a", b"\xff"]}, "stopping.stop[1]: expected text that UTF-8 can hold, got b'\\xff'"),
        ({"stop": ["a", "\udcff"]}, "stopping.stop[1]: expected text that UTF-8 can hold, got '\\udcff'"),
        ({"stop_ids": [5, -1]}, "stopping.stop_ids[1]: expected a whole number from 0 to 4294967295, got -1"),
        (
            {"stop_ids": 5},
            "stopping.stop_ids: expected a sequence, each a whole number from 0 to 4294967295, got 5",
        ),
        ({"resume": 5}, "resume: expected a Resume, got 5"),
        ({"n": -1}, "n: expected a whole number from 0 to 4294967295, got -1"),
        ({"temperature": "hot"}, "sampling.temperature: expected a number, got 'hot'"),
    ],
)
def test_values_that_fit_no_message(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        to_request("hi", **options)
    assert caught.value.message.startswith(told)


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("a\udcff", "text: expected text that UTF-8 can hold, got 'a\\udcff'"),
        ([7, -1], "token_ids.ids[1]: expected a whole number from 0 to 4294967295, got -1"),
        ([2**32], "token_ids.ids[0]: expected a whole number from 0 to 4294967295, got 4294967296"),
        (["7"], "token_ids.ids[0]: expected a whole number from 0 to 4294967295, got '7'"),
        (
            Chat((ChatMessage("user", "u"), ChatMessage("user", "\ud800"))),
            "chat.messages[1].content: expected text that UTF-8 can hold, got '\\ud800'",
        ),
    ],
)
def test_a_prompt_that_fits_no_message(prompt: Any, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        to_request(prompt)
    assert caught.value.message == told


def test_one_stop_string_is_not_its_letters() -> None:
    with pytest.raises(
        InvalidInput, match=r"stopping\.stop: expected a sequence, each text that UTF-8 can hold, got 'END'"
    ):
        to_request("hi", stop="END")


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="beam_width"):
        to_request("hi", beam_width=4)  # type: ignore[call-arg]


def test_tokenize_and_detokenize() -> None:
    assert to_tokenize("hi", False) == pb.TokenizeRequest(text="hi", add_special=False)
    assert not to_tokenize("hi", None).HasField("add_special")
    assert to_detokenize([1, 2], True) == pb.DetokenizeRequest(ids=[1, 2], skip_special=True)
    with pytest.raises(InvalidInput, match=r"ids\[0\]: expected a whole number from 0 to 4294967295, got -1"):
        to_detokenize([-1], True)


LOGPROBS = (TokenLogprobs(-0.5, ((7, -0.5), (2, -1.5))), TokenLogprobs(0.0))


@pytest.mark.parametrize(
    "event",
    [
        Accepted("q", 3, 2**64 - 1),
        Prompt((1, 2, 3), "abc"),
        Prompt((1, 2, 3), "abc", (None, *LOGPROBS)),
        Tokens((7, 8), (1, 2**64 - 1), "t\u00e9xt", 2, LOGPROBS),
        Tokens((), (), "tail"),
        Finished(FinishReason.STOP, 0, Usage(3, 4), 9, 10, "numerics", 1),
        Finished(FinishReason.STOP, None, Usage(3, 4), 9, 10, "numerics", 1, "END"),
        Finished(FinishReason.LENGTH, None, Usage(3, 4), 9, 10, "numerics"),
        Finished(FinishReason.ABORT, None, Usage(3, 0), 0, 10),
    ],
)
def test_events_survive_the_wire(event: Event) -> None:
    """Through the server's own encoding; log-probabilities are halves, so that fp32 holds them."""
    assert to_event(pb.GenerateReply.FromString(to_reply(event).SerializeToString()), "host:1") == event


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (pb.GenerateReply(), "host:1: a reply without an event"),
        (pb.GenerateReply(finished=pb.Finished()), "host:1: finish reason 0 is unknown"),
        (pb.GenerateReply(tokens=pb.Tokens(ids=[1, 2], receipts=[1])), "host:1: 1 receipts for 2 tokens"),
        (
            pb.GenerateReply(tokens=pb.Tokens(ids=[1], receipts=[1], logprobs=[pb.TokenLogprobs()] * 2)),
            "host:1: 2 logprobs for 1 tokens",
        ),
    ],
)
def test_strange_replies(reply: pb.GenerateReply, message: str) -> None:
    with pytest.raises(FrameError, match=message) as caught:
        to_event(reply, "host:1")
    assert caught.value.peer == "host:1"


def test_defaults_that_a_server_tells() -> None:
    reply = pb.ModelInfoReply(
        name="m",
        has_chat_template=True,
        defaults=pb.Defaults(
            sampling=pb.Sampling(temperature=0.5, top_k=0),
            max_tokens=7,
            stop_ids=[2],
            sources={"temperature": "generation_config.json"},
            ignored=["num_beams"],
        ),
    )
    info = to_model_info(reply)
    assert (info.name, info.has_chat_template, info.has_tokenizer) == ("m", True, False)
    assert info.defaults.sampling == SamplingOptions(temperature=0.5, top_k=0)
    assert (info.defaults.max_tokens, info.defaults.stop_ids, info.defaults.ignored) == (
        7,
        (2,),
        ("num_beams",),
    )
    assert info.defaults.sources == {"temperature": "generation_config.json"}


def test_targets_are_checked() -> None:
    with pytest.raises(ConfigError, match="target: expected unix: and an absolute path"):
        Client("unix:relative")
