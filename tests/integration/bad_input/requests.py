"""The table of bad calls of the services Generation and Router, and of a worker's control calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from colibri.errors import Code
from colibri.v1 import expert_pb2 as ep
from colibri.v1 import generation_pb2 as gp
from colibri.v1 import router_pb2 as rp
from tests.integration.bad_input.case import ANY, Refusal, invalid, said
from tests.integration.bad_input.folders import CONTEXT, HIDDEN, VOCAB

GENERATE = "/colibri.v1.Generation/Generate"
ABORT = "/colibri.v1.Generation/Abort"
TOKENIZE = "/colibri.v1.Generation/Tokenize"
DETOKENIZE = "/colibri.v1.Generation/Detokenize"
FORWARD = "/colibri.v1.Router/Forward"
GATE = "/colibri.v1.Router/Gate"
HANDSHAKE = "/colibri.v1.Expert/Handshake"
LOAD = "/colibri.v1.Expert/Load"
RETIRE = "/colibri.v1.Expert/Retire"
ATTACH = "/colibri.v1.Expert/Attach"

MAX_ROWS = 4096
MAX_U32 = (1 << 32) - 1
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True, slots=True)
class CallCase:
    """`make`: the bytes of the request, built when they are needed. `heavy`: megabytes, so repeated less often."""

    id: str
    how: str
    method: str
    make: Callable[[], bytes]
    refusal: Refusal
    timeout_s: float | None = None
    heavy: bool = False


def request(**fields: Any) -> gp.GenerateRequest:
    """A good request with some fields replaced."""
    values: dict[str, Any] = {"token_ids": gp.TokenIds(ids=[5, 9, 42]), "stopping": gp.Stopping(max_tokens=4)}
    return gp.GenerateRequest(**{**values, **fields})


def _generate(id: str, how: str, refusal: Refusal, *, heavy: bool = False, **fields: Any) -> CallCase:
    def make() -> bytes:
        return request(
            **{name: value() if callable(value) else value for name, value in fields.items()}
        ).SerializeToString()

    return CallCase(f"generate-{id}", how, GENERATE, make, refusal, heavy=heavy)


def _sampling(id: str, expected: str, got: str | None = None, **fields: Any) -> CallCase:
    ((name, value),) = fields.items()
    shown = repr(value) if isinstance(value, str) else str(value)
    how = f"sampling.{name} = {shown}"
    return _generate(
        f"{name.replace('_', '-')}-{id}",
        how,
        invalid(f"sampling.{name}", expected, shown if got is None else got),
        sampling=gp.Sampling(**fields),
    )


def _stopping(id: str, how: str, refusal: Refusal, *, heavy: bool = False, **fields: Any) -> CallCase:
    def stopping() -> gp.Stopping:
        made = {name: value() if callable(value) else value for name, value in fields.items()}
        return gp.Stopping(**{"max_tokens": 4, **made})

    return _generate(id, how, refusal, heavy=heavy, stopping=stopping)


def _bytes(message: Callable[[], Message]) -> Callable[[], bytes]:
    return lambda: message().SerializeToString()


_PROMPT_MOST = f"at most {CONTEXT - 1} tokens (the context holds {CONTEXT})"
_TEMPERATURE = "0, or 1e-06 to 100"
_TOP_P = "above 0, at most 1"
_ID = f"a token id from 0 to {VOCAB - 1}"
_REQUEST_ID = "0 to 128 printable ASCII characters without spaces"

PROMPTS = (
    CallCase(
        "generate-garbage", "bytes that are no GenerateRequest", GENERATE, lambda: b"\x0a\xff\xff\xff\xff\x7f",
        invalid("request", "a colibri.v1.GenerateRequest", "6 bytes that are none"),
    ),
    CallCase(
        "generate-not-utf8", "a request_id that is no UTF-8", GENERATE, lambda: b"\x0a\x02\xff\xfe",
        invalid("request", "a colibri.v1.GenerateRequest", "4 bytes that are none"),
    ),
    CallCase(
        "generate-empty", "an empty request", GENERATE, lambda: b"",
        invalid("prompt", "text, token_ids or chat", "none of them"),
    ),
    CallCase(
        "generate-too-large", "a request of 5 MiB", GENERATE,
        _bytes(lambda: gp.GenerateRequest(text="a" * (5 << 20))),
        said(Code.RESOURCE_EXHAUSTED, f"{ANY}: Received message larger than max (5242885 vs. {ANY})"), heavy=True,
    ),
    CallCase(
        "method-unknown", "a method that no service has", "/colibri.v1.Generation/Guess", lambda: b"",
        said(Code.UNIMPLEMENTED, "Method not found!"),
    ),
    CallCase(
        "service-unknown", "a service that is not there", "/openai.v1.Chat/Completions", lambda: b"",
        said(Code.UNIMPLEMENTED, "Method not found!"),
    ),
    _generate("no-ids", "no token ids",
              invalid("token_ids.ids", "at least one token", "none"), token_ids=gp.TokenIds()),
    _generate("id-beyond", "a token id at the end of the vocabulary",
              invalid("token_ids.ids[1]", _ID, str(VOCAB)), token_ids=gp.TokenIds(ids=[1, VOCAB])),
    _generate("id-32-bits", "a token id of 2^32 - 1",
              invalid("token_ids.ids[0]", _ID, str(MAX_U32)), token_ids=gp.TokenIds(ids=[MAX_U32])),
    _generate("prompt-beyond", "a prompt as long as the context",
              invalid("token_ids.ids", _PROMPT_MOST, f"{CONTEXT} tokens"),
              token_ids=gp.TokenIds(ids=[7] * CONTEXT)),
    _generate("text-long", "a text of more bytes than the context's tokens can stand for",
              invalid("text", f"{_PROMPT_MOST}, which stand for at most {5 * (CONTEXT - 1)} bytes", "1048576 bytes"),
              heavy=True, token_ids=None, text=lambda: "x" * (1 << 20)),
    _generate("prompt-million", "a prompt of a million ids",
              invalid("token_ids.ids", _PROMPT_MOST, "1000000 tokens"), heavy=True,
              token_ids=lambda: gp.TokenIds(ids=[7] * 1_000_000)),
    _generate("text-beyond", "a text of 3,000 words",
              invalid("text", f"{_PROMPT_MOST}, which stand for at most 2555 bytes", "9000 bytes"),
              token_ids=None, text="w7 " * 3000),
    _generate("text-large", "a text of 2 MiB", invalid("text", "at most 1048576 bytes", "2097152 bytes"),
              heavy=True, token_ids=None, text=lambda: "a" * (2 << 20)),
    _generate("sum-beyond", "prompt and max_tokens beyond the context",
              invalid("stopping.max_tokens", f"1 to {CONTEXT - 3} (context {CONTEXT} less 3 tokens of prompt)", "510"),
              stopping=gp.Stopping(max_tokens=510)),
    _generate("priority", "priority 1001", invalid("priority", "0 to 1000", "1001"), priority=1001),
    _generate("priority-32-bits", "priority 2^32 - 1",
              invalid("priority", "0 to 1000", str(MAX_U32)), priority=MAX_U32),
    _generate("request-id-space", "a request id with a space",
              invalid("request_id", _REQUEST_ID, "'a b'"), request_id="a b"),
    _generate("request-id-break", "a request id with a line break",
              invalid("request_id", _REQUEST_ID, r"'a\nERROR forged'"), request_id="a\nERROR forged"),
    _generate("request-id-long", "a request id of 129 characters",
              invalid("request_id", _REQUEST_ID, repr("x" * 129)), request_id="x" * 129),
    _generate("request-id-emoji", "a request id of emoji",
              invalid("request_id", _REQUEST_ID, repr("\U0001f426" * 9)), request_id="\U0001f426" * 9),
    CallCase(
        "deadline-expired", "a deadline that is over", GENERATE, _bytes(request),
        said(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"), timeout_s=-1.0,
    ),
    CallCase(
        "deadline-in-answer", "a deadline of 30 ms for 500 tokens", GENERATE,
        _bytes(lambda: request(stopping=gp.Stopping(max_tokens=500, ignore_eos=True))),
        said(Code.DEADLINE_EXCEEDED, ANY), timeout_s=0.03,
    ),
)  # fmt: skip

CHATS = (
    _generate("chat-empty", "a chat without messages",
              invalid("chat.messages", "1 to 16384 messages", "0"), token_ids=None, chat=gp.Chat()),
    _generate("chat-many", "a chat of 20,000 messages",
              invalid("chat.messages", "1 to 16384 messages", "more than 16384 messages"), heavy=True, token_ids=None,
              chat=lambda: gp.Chat(messages=[gp.ChatMessage(role="user", content="w1")] * 20_000)),
    _generate("chat-large", "a chat of 2 MiB",
              invalid("chat.messages", "at most 1048576 bytes", "2097156 bytes"), heavy=True, token_ids=None,
              chat=lambda: gp.Chat(messages=[gp.ChatMessage(role="user", content="a" * (2 << 20))])),
    _generate("chat-role", "a role that the template refuses",
              invalid("chat.messages", "what the chat template accepts", "its error: no role robot"),
              token_ids=None, chat=gp.Chat(messages=[gp.ChatMessage(role="robot", content="w1")])),
    _generate("chat-long", "a chat beyond the context",
              invalid("chat", _PROMPT_MOST, ANY), token_ids=None,
              chat=gp.Chat(messages=[gp.ChatMessage(role="user", content="w1 " * 600)])),
)  # fmt: skip

_MIN_P, _PENALTY, _REPETITION = "0 to 1", "-2 to 2", "1e-06 to 100"
SAMPLING = (
    _sampling("negative", _TEMPERATURE, "-1.0", temperature=-1),
    _sampling("tiny", _TEMPERATURE, "9.999999717180685e-10", temperature=1e-9),
    _sampling("huge", _TEMPERATURE, ANY, temperature=1e30),
    _sampling("nan", _TEMPERATURE, temperature=NAN),
    _sampling("inf", _TEMPERATURE, temperature=INF),
    _sampling("zero", _TOP_P, "0.0", top_p=0),
    _sampling("negative", _TOP_P, "-0.5", top_p=-0.5),
    _sampling("above", _TOP_P, "1.5", top_p=1.5),
    _sampling("nan", _TOP_P, top_p=NAN),
    _sampling("beyond", f"0 to {VOCAB} (the vocabulary)", str(VOCAB + 1), top_k=VOCAB + 1),
    _sampling("32-bits", f"0 to {VOCAB} (the vocabulary)", str(MAX_U32), top_k=MAX_U32),
    _sampling("negative", _MIN_P, "-0.5", min_p=-0.5),
    _sampling("above", _MIN_P, "1.5", min_p=1.5),
    _sampling("nan", _MIN_P, min_p=NAN),
    _sampling("zero", _REPETITION, "0.0", repetition_penalty=0),
    _sampling("negative", _REPETITION, "-1.0", repetition_penalty=-1),
    _sampling("above", _REPETITION, "101.0", repetition_penalty=101),
    _sampling("nan", _REPETITION, repetition_penalty=NAN),
    _sampling("inf", _REPETITION, repetition_penalty=INF),
    _sampling("above", _PENALTY, "2.5", presence_penalty=2.5),
    _sampling("nan", _PENALTY, presence_penalty=NAN),
    _sampling("below", _PENALTY, "-2.5", frequency_penalty=-2.5),
    _sampling("inf", _PENALTY, "-inf", frequency_penalty=-INF),
    _generate("n-17", "17 choices", invalid("n", "1 to 16, or 0 for 1", "17"), n=17),
    _generate("n-32-bits", "2^32 - 1 choices", invalid("n", "1 to 16, or 0 for 1", str(MAX_U32)), n=MAX_U32),
    _generate("logprobs-21", "21 log-probabilities", invalid("logprobs", "0 to 20", "21"), logprobs=21),
    _generate("logprobs-32-bits", "2^32 - 1 log-probabilities",
              invalid("logprobs", "0 to 20", str(MAX_U32)), logprobs=MAX_U32),
)  # fmt: skip

STOPPING = (
    _stopping("max-tokens-zero", "max_tokens 0",
              invalid("stopping.max_tokens", f"1 to {CONTEXT - 3} (context {CONTEXT} less 3 tokens of prompt)", "0"),
              max_tokens=0),
    _stopping("max-tokens-32-bits", "max_tokens 2^32 - 1",
              invalid("stopping.max_tokens", f"1 to {CONTEXT - 3} (context {CONTEXT} less 3 tokens of prompt)",
                      str(MAX_U32)), max_tokens=MAX_U32),
    _stopping("stop-id-beyond", "a stop id beyond the vocabulary",
              invalid("stopping.stop_ids[0]", _ID, str(VOCAB)), stop_ids=[VOCAB]),
    _stopping("stop-ids-65", "65 stop ids",
              invalid("stopping.stop_ids", "at most 64 ids", "65 ids"), stop_ids=[1] * 65),
    _stopping("stop-ids-million", "a million stop ids",
              invalid("stopping.stop_ids", "at most 64 ids", "1000000 ids"), heavy=True,
              stop_ids=lambda: [1] * 1_000_000),
    _stopping("stops-17", "17 stop strings",
              invalid("stopping.stop", "at most 16 strings", "17 strings"), stop=["a"] * 17),
    _stopping("stops-million", "a million stop strings",
              invalid("stopping.stop", "at most 16 strings", "more than 16 strings"), heavy=True,
              stop=lambda: ["a"] * 1_000_000),
    _stopping("stop-empty", "an empty stop string",
              invalid("stopping.stop[1]", "1 to 256 bytes", "0 bytes"), stop=["a", ""]),
    _stopping("stop-long", "a stop string of 257 bytes",
              invalid("stopping.stop[0]", "1 to 256 bytes", "257 bytes"), stop=["a" * 257]),
    _stopping("stop-bytes", "a stop string of 100 emoji, 400 bytes",
              invalid("stopping.stop[0]", "1 to 256 bytes", "400 bytes"), stop=["\U0001f426" * 100]),
    _stopping("min-beyond", "min_tokens above max_tokens",
              invalid("stopping.min_tokens", "0 to 4 (max_tokens)", "5"), min_tokens=5),
    _stopping("min-32-bits", "min_tokens 2^32 - 1",
              invalid("stopping.min_tokens", "0 to 4 (max_tokens)", str(MAX_U32)), min_tokens=MAX_U32),
)  # fmt: skip

RESUME = (
    _generate("resume-long", "more resumed ids than max_tokens",
              invalid("resume.generated_ids", "at most max_tokens (4, which counts the whole answer)", "5"),
              resume=gp.Resume(generated_ids=[7] * 5, receipt=1)),
    _generate("resume-million", "a million resumed ids",
              invalid("resume.generated_ids", _PROMPT_MOST, "1000000 tokens"),
              heavy=True, resume=lambda: gp.Resume(generated_ids=[7] * 1_000_000, receipt=1)),
    _generate("resume-ended", "resumed ids that go on after the end",
              invalid("resume.generated_ids[1]", "no id that ends the answer", "stop id 2"),
              resume=gp.Resume(generated_ids=[7, 2, 7], receipt=1)),
    _generate("resume-choice", "choice 2^32 - 1",
              invalid("resume.choice", "0 to 15", str(MAX_U32)), resume=gp.Resume(choice=MAX_U32)),
    _generate("resume-n", "an answer resumed twice at once", invalid("n", "1 where an answer is resumed", "2"),
              n=2, resume=gp.Resume(generated_ids=[7], receipt=1)),
    _generate("resume-beyond", "resumed ids beyond the vocabulary",
              invalid("resume.generated_ids[0]", _ID, "777"), resume=gp.Resume(generated_ids=[777], receipt=1)),
    _generate("resume-receipt", "a receipt without resumed ids",
              invalid("resume.receipt", "0 without generated_ids", "9"), resume=gp.Resume(receipt=9)),
    _generate("resume-seed", "a sampled answer resumed without its seed",
              invalid("sampling.seed", "the seed of the answer that is resumed", "none"),
              resume=gp.Resume(generated_ids=[7], receipt=1), sampling=gp.Sampling(temperature=1)),
)  # fmt: skip

OTHERS = (
    CallCase("tokenize-empty", "Tokenize of nothing", TOKENIZE, lambda: b"",
             invalid("input", "text or chat", "neither")),
    CallCase("tokenize-large", "Tokenize of 2 MiB", TOKENIZE,
             _bytes(lambda: gp.TokenizeRequest(text="a" * (2 << 20))),
             invalid("text", "at most 1048576 bytes", "2097152 bytes"), heavy=True),
    CallCase("tokenize-special", "Tokenize of a chat that says add_special", TOKENIZE,
             _bytes(lambda: gp.TokenizeRequest(
                 chat=gp.Chat(messages=[gp.ChatMessage(role="user", content="w1")]), add_special=True)),
             invalid("add_special", "unset with a chat, whose template decides", "True")),
    CallCase("tokenize-reply", "Tokenize of 1 MiB of blanks", TOKENIZE,
             _bytes(lambda: gp.TokenizeRequest(text=" " * (1 << 20))),
             invalid("text", "what makes a reply of at most 4194304 bytes", f"{ANY} bytes"), heavy=True),
    CallCase("detokenize-many", "Detokenize of 900,000 ids", DETOKENIZE,
             _bytes(lambda: gp.DetokenizeRequest(ids=[7] * 900_000)),
             invalid("ids", "at most 131072 ids", "900000 ids"), heavy=True),
    CallCase("detokenize-beyond", "Detokenize of an id beyond the vocabulary", DETOKENIZE,
             _bytes(lambda: gp.DetokenizeRequest(ids=[1, VOCAB])), invalid("ids[1]", _ID, str(VOCAB))),
    CallCase("abort-empty", "Abort without an id", ABORT, lambda: b"",
             invalid("request_id", "1 to 128 printable ASCII characters without spaces", "''")),
    CallCase("abort-large", "Abort with an id of 1 MiB", ABORT,
             _bytes(lambda: gp.AbortRequest(request_id="a" * (1 << 20))),
             invalid("request", "at most 65536 bytes", "1048580 bytes"), heavy=True),
    CallCase("generate-fields", "a request of a million unknown fields", GENERATE,
             lambda: b"\x98\x06\x01" * 1_000_000, invalid("request", "at most 16384 fields", "more"), heavy=True),
    CallCase("abort-garbage", "bytes that are no AbortRequest", ABORT, lambda: b"\xff",
             invalid("request", "a colibri.v1.AbortRequest", "1 bytes that are none")),
)  # fmt: skip

GENERATION = (*PROMPTS, *CHATS, *SAMPLING, *STOPPING, *RESUME, *OTHERS)


def forward(rows: int = 2, **fields: Any) -> rp.ForwardRequest:
    """A good Router.Forward with some fields replaced."""
    if "data" not in fields:
        fields["data"] = np.ones((rows, HIDDEN), np.float32).tobytes()
    return rp.ForwardRequest(**{"layer": 0, "rows": rows, "hidden": HIDDEN, **fields})


def _router(id: str, how: str, refusal: Refusal, **fields: Any) -> tuple[CallCase, CallCase]:
    make = _bytes(lambda: forward(**fields))
    return (
        CallCase(f"forward-{id}", how, FORWARD, make, refusal),
        CallCase(f"gate-{id}", f"{how} (Gate)", GATE, make, refusal),
    )


_ROWS = f"0 to {MAX_ROWS}"


def _data(rows: int) -> str:
    return f"{rows * HIDDEN * 4} bytes (rows x hidden fp32)"


ROUTER = (
    *_router("layer", "a layer that the model has not", invalid("layer", "0 to 1", "2"), layer=2),
    *_router("layer-32-bits", "layer 2^32 - 1", invalid("layer", "0 to 1", str(MAX_U32)), layer=MAX_U32),
    *_router("hidden", "another hidden size", invalid("hidden", str(HIDDEN), "31"), hidden=31),
    *_router("hidden-zero", "hidden 0", invalid("hidden", str(HIDDEN), "0"), hidden=0),
    *_router("hidden-32-bits", "hidden 2^32 - 1", invalid("hidden", str(HIDDEN), str(MAX_U32)), hidden=MAX_U32),
    *_router("rows-beyond", "one row too many", invalid("rows", _ROWS, str(MAX_ROWS + 1)),
             rows=MAX_ROWS + 1, data=b""),
    *_router("rows-32-bits", "2^32 - 1 rows", invalid("rows", _ROWS, str(MAX_U32)), rows=MAX_U32, data=b""),
    *_router("product", "rows and hidden that multiply beyond 64 bits",
             invalid("hidden", str(HIDDEN), str(MAX_U32)), rows=MAX_U32, hidden=MAX_U32, data=b""),
    *_router("data-short", "a byte too few", invalid("data", _data(2), "255 bytes"), data=bytes(255)),
    *_router("data-long", "a byte too many", invalid("data", _data(2), "257 bytes"), data=bytes(257)),
    *_router("data-none", "no data", invalid("data", _data(2), "0 bytes"), data=b""),
    *_router("data-fewer", "data of fewer rows than said", invalid("data", _data(4000), "256 bytes"),
             rows=4000, data=bytes(256)),
    *_router("data-zero-rows", "data, but zero rows", invalid("data", _data(0), "128 bytes"), rows=0, data=bytes(128)),
    CallCase("forward-garbage", "bytes that are no ForwardRequest", FORWARD, lambda: b"\x22\xff\xff\xff\xff\x0f",
             invalid("request", "a colibri.v1.ForwardRequest", "6 bytes that are none")),
    CallCase("forward-deadline", "a deadline that is over", FORWARD, _bytes(forward),
             said(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"), timeout_s=-1.0),
)  # fmt: skip


def handshake(**fields: Any) -> ep.HandshakeRequest:
    """A router's first words, with these fields."""
    return ep.HandshakeRequest(**{"protocol_min": 1, "protocol_max": 1, "router_name": "r", **fields})


def _control(id: str, how: str, method: str, message: Callable[[], Message], refusal: Refusal) -> CallCase:
    return CallCase(f"worker-{id}", how, method, _bytes(message), refusal)


def _mismatch(field: str, value: str, own: str = ANY) -> Refusal:
    return said(Code.FAILED_PRECONDITION, f"{field}: router 'r' has {value!r}, worker w0 has '{own}'")


def workers_control(model_hash: str, numerics: str) -> tuple[CallCase, ...]:
    """Against worker w0, which holds the model of this hash."""
    ours = {"model_hash": model_hash, "expert_numerics_id": numerics}
    return (
        _control("protocol", "a router that speaks only later protocols", HANDSHAKE,
                 lambda: handshake(**{**ours, "protocol_min": 98, "protocol_max": 99}),
                 said(Code.FAILED_PRECONDITION, "protocol: router 'r' speaks 98 to 99, worker w0 1 to 1")),
        _control("model", "another model's router", HANDSHAKE,
                 lambda: handshake(**{**ours, "model_hash": "0" * 32}), _mismatch("model_hash", "0" * 32, model_hash)),
        _control("pack", "a router that wants a pack", HANDSHAKE,
                 lambda: handshake(**{**ours, "pack_hash": "abc"}), said(
                     Code.FAILED_PRECONDITION, "pack_hash: router 'r' has 'abc', worker w0 has ''")),
        _control("numerics", "another numerics id", HANDSHAKE,
                 lambda: handshake(**{**ours, "expert_numerics_id": "cpu/int3"}),
                 said(Code.FAILED_PRECONDITION, f"expert_numerics_id: router 'r' has 'cpu/int3', worker w0 has "
                      f"'{numerics}'; only with --mixed-numerics of the router do such workers serve together")),
        _control("empty-handshake", "an empty handshake", HANDSHAKE, ep.HandshakeRequest,
                 said(Code.FAILED_PRECONDITION, "protocol: router '' speaks 0 to 0, worker w0 1 to 1")),
        _control("load-layer", "loads a layer that the model has not", LOAD,
                 lambda: ep.LoadRequest(epoch=1, experts=[ep.ExpertId(layer=2, expert=0)]),
                 invalid("layer", "0 to 1", "2")),
        _control("load-expert", "loads expert 2^32 - 1", LOAD,
                 lambda: ep.LoadRequest(epoch=1, experts=[ep.ExpertId(layer=0, expert=MAX_U32)]),
                 invalid("expert", "0 to 3", str(MAX_U32))),
        _control("load-many", "loads one expert 100,000 times", LOAD,
                 lambda: ep.LoadRequest(epoch=1, experts=[ep.ExpertId()] * 100_000),
                 invalid("experts", "at most 8, as many as the model has", "100000")),
        _control("retire-expert", "drops an expert that the model has not", RETIRE,
                 lambda: ep.RetireRequest(experts=[ep.ExpertId(layer=0, expert=9)]),
                 invalid("expert", "0 to 3", "9")),
        _control("attach-host", "shared memory for another host", ATTACH,
                 lambda: ep.AttachRequest(host="elsewhere", layout=1),
                 invalid("host", "the host of this worker", "elsewhere")),
        _control("attach-empty", "shared memory for nobody", ATTACH, ep.AttachRequest,
                 invalid("host", "the host of this worker", "none")),
    )  # fmt: skip
