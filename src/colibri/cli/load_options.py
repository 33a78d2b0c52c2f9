"""Options of a load, and what they mean to colibri.load."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import integer, number

if TYPE_CHECKING:
    from colibri.client import ModelInfo
    from colibri.load.arrivals import Arrivals
    from colibri.load.prompts import Prompts
    from colibri.load.result import RunLimits
    from colibri.load.targets.target import Target
    from colibri.load.trace_file import TraceEntry
    from colibri.load.workload import Workload

#: Values of colibri.load.targets.openai_http.PromptForm.
FORMS = ("ids", "text", "chat")
#: Of a text file, so much is cut into prompts: what one call to Tokenize takes.
TEXT_BYTES = 256 << 10
DEFAULT_REQUESTS = 100


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", default="127.0.0.1:50051", metavar="ADDR", help="colibri server: host:port or unix:/path"
    )
    parser.add_argument(
        "--openai",
        default=argparse.SUPPRESS,
        metavar="URL",
        help="measure this OpenAI-compatible server instead, as http://host:8000/v1 (key: $OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--openai-model", default="default", metavar="NAME", help="the model to ask such a server for"
    )
    parser.add_argument("--openai-form", choices=FORMS, default="ids", help="how prompts go to such a server")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="folder with the tokenizer.json of a model behind --openai",
    )
    parser.add_argument(
        "--vocab",
        type=integer(1, 1 << 24),
        default=argparse.SUPPRESS,
        metavar="N",
        help="vocabulary of a model behind --openai, where no --tokenizer tells",
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group(required=True)
    unset = argparse.SUPPRESS
    how.add_argument(
        "--rate",
        type=number(0, math.inf),
        default=unset,
        metavar="R",
        help="open loop: R requests per second on average, inf: all at once",
    )
    how.add_argument(
        "--users",
        type=integer(1, 4096),
        default=unset,
        metavar="N",
        help="closed loop: N users, one after another",
    )
    how.add_argument(
        "--trace",
        type=Path,
        default=unset,
        metavar="FILE",
        help="open loop: times and lengths of this file of JSON lines (timestamp in ms, input_length, "
        "output_length)",
    )
    parser.add_argument(
        "--burstiness",
        type=number(1e-3, 1e6),
        default=1.0,
        metavar="B",
        help="with --rate, shape of the gamma distribution of gaps: 1 Poisson, below 1 bursts",
    )
    parser.add_argument(
        "--trace-speed",
        type=number(1e-6, 1e6),
        default=1.0,
        metavar="X",
        help="with --trace: X times as fast",
    )
    parser.add_argument(
        "--think", type=number(0, 1e6), default=0.0, metavar="S", help="with --users: pause after each answer"
    )
    parser.add_argument(
        "--requests",
        type=integer(1, 10_000_000),
        default=unset,
        metavar="N",
        help=f"end after N requests (default: the whole trace, else {DEFAULT_REQUESTS} without --duration)",
    )
    parser.add_argument(
        "--duration", type=number(1e-3, 1e7), default=unset, metavar="S", help="send nothing after S seconds"
    )
    parser.add_argument(
        "--in-flight",
        type=integer(1, 4096),
        default=128,
        metavar="N",
        help="declared bound of requests at once; an open loop that reaches it is invalid",
    )
    parser.add_argument(
        "--timeout", type=number(1e-3, 1e7), default=120.0, metavar="S", help="seconds for one answer"
    )
    parser.add_argument(
        "--warmup", type=integer(0, 100_000), default=2, metavar="N", help="requests before the measured ones"
    )


def add_requests(parser: argparse.ArgumentParser) -> None:
    lengths = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX tokens"
    parser.add_argument("--input-len", default="64", metavar="LEN", help=f"prompt: {lengths}")
    parser.add_argument("--output-len", default="32", metavar="LEN", help=f"answer: {lengths}")
    parser.add_argument(
        "--text",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="cut prompts out of this text (default: random tokens)",
    )
    parser.add_argument(
        "--distinct",
        type=integer(1, 1_000_000),
        default=argparse.SUPPRESS,
        metavar="N",
        help="repeat the same N requests (default: all differ)",
    )
    parser.add_argument("--seed", type=integer(0, (1 << 63) - 1), default=0, help="of arrivals and requests")
    parser.add_argument(
        "--temperature", type=number(0, 100), default=0.0, metavar="T", help="0: always the likeliest token"
    )
    parser.add_argument(
        "--top-p", type=number(0, 1), default=1.0, metavar="P", help="smallest set of this mass"
    )
    parser.add_argument("--top-k", type=integer(0, 1 << 31), default=0, metavar="K", help="0: off")
    parser.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="let end-of-sequence tokens end answers (default: they go on to their full length)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an answer that fails with a retryable error from its tokens; the target must be colibri's",
    )


@dataclass(frozen=True, slots=True)
class Load:
    """make_target: a new one for each run. warmup: of other requests than `workload`'s."""

    make_target: Callable[[], Target]
    workload: Workload
    arrivals: Arrivals
    limits: RunLimits
    warmup: Workload
    info: ModelInfo | None

    def count(self) -> int | None:
        """Requests that the run makes; None: unknown before it ends."""
        from colibri.load.arrivals import OpenLoop

        arrivals = self.arrivals
        return len(arrivals.offsets) if isinstance(arrivals, OpenLoop) else arrivals.requests


def read_load(args: argparse.Namespace) -> Load:
    """What the options say. Asks a colibri server for its model and its tokenizer. Raises ConfigError for options
    that do not fit together, ColibriError when the server does not answer."""
    from colibri.load.arrivals import ClosedLoop, gamma, limited
    from colibri.load.result import RunLimits
    from colibri.load.trace_file import read_trace, trace_arrivals

    _check(args)
    limits = RunLimits(in_flight=args.in_flight, request_timeout_s=args.timeout, drain_s=args.timeout)
    requests, duration = getattr(args, "requests", None), getattr(args, "duration", None)
    if requests is None and duration is None and not hasattr(args, "trace"):
        requests = DEFAULT_REQUESTS
    entries: tuple[TraceEntry, ...] | None = None
    arrivals: Arrivals
    if hasattr(args, "trace"):
        entries = read_trace(args.trace)
        offsets = trace_arrivals(entries, args.trace_speed).offsets
        arrivals = limited(offsets, len(offsets) if requests is None else requests, duration)
    elif hasattr(args, "users"):
        arrivals = ClosedLoop(args.users, requests, duration, args.think)
    else:
        arrivals = limited(gamma(args.rate, args.burstiness, args.seed), requests, duration)
    if hasattr(args, "openai"):
        return _openai(args, arrivals, limits, entries)
    return _colibri(args, arrivals, limits, entries)


def _check(args: argparse.Namespace) -> None:
    from colibri.errors import ConfigError

    def refuse(option: str, needs: str) -> None:
        raise ConfigError(option, f"it only with {needs}", "no such option")

    if args.resume and hasattr(args, "openai"):
        raise ConfigError("--resume", "a colibri --target", "--openai")
    if not hasattr(args, "openai"):
        for name in ("tokenizer", "vocab"):
            if hasattr(args, name):
                refuse(f"--{name}", "--openai")
    if args.think and not hasattr(args, "users"):
        refuse("--think", "--users")
    if args.burstiness != 1.0 and not hasattr(args, "rate"):
        refuse("--burstiness", "--rate")
    if args.trace_speed != 1.0 and not hasattr(args, "trace"):
        refuse("--trace-speed", "--trace")


def _colibri(
    args: argparse.Namespace, arrivals: Arrivals, limits: RunLimits, entries: tuple[TraceEntry, ...] | None
) -> Load:
    from colibri.client import Client
    from colibri.load.prompts import RandomIds, TextIds
    from colibri.load.targets.colibri_grpc import GrpcTarget

    with Client(args.target) as client:
        client.wait_ready(limits.connect_timeout_s)
        info = client.model_info()
        prompts: Prompts = RandomIds(info.vocab, info.eos_ids)
        if hasattr(args, "text"):
            prompts = TextIds(client.tokenize(_text(args.text), add_special=False, timeout_s=60.0).ids)

    def make() -> GrpcTarget:
        return GrpcTarget(args.target, in_flight=limits.in_flight, resume=args.resume)

    return _load(args, make, prompts, None, arrivals, limits, entries, info)


def _openai(
    args: argparse.Namespace, arrivals: Arrivals, limits: RunLimits, entries: tuple[TraceEntry, ...] | None
) -> Load:
    from colibri.errors import ConfigError
    from colibri.load.prompts import RandomIds, TextIds
    from colibri.load.targets.openai_http import OpenAITarget, PromptForm, require_httpx
    from colibri.models.tokenizer import Tokenizer

    require_httpx()
    form = PromptForm(args.openai_form)
    tokenizer = Tokenizer.load(args.tokenizer) if hasattr(args, "tokenizer") else None
    if tokenizer is None and (form is not PromptForm.IDS or hasattr(args, "text")):
        raise ConfigError("--tokenizer", "a folder, for prompts from or as text", "none")
    if tokenizer is not None:
        prompts: Prompts = RandomIds(tokenizer.vocab, tokenizer.special)
        if hasattr(args, "text"):
            prompts = TextIds(tokenizer.encode(_text(args.text), add_special=False))
    elif hasattr(args, "vocab"):
        prompts = RandomIds(args.vocab)
    else:
        raise ConfigError("--openai", "--tokenizer or --vocab with it, to draw prompts from", "neither")
    key = os.environ.get("OPENAI_API_KEY")

    def make() -> OpenAITarget:
        return OpenAITarget(args.openai, args.openai_model, form, in_flight=limits.in_flight, api_key=key)

    make()  # what is wrong with the options shows now
    spell = None if tokenizer is None or form is PromptForm.IDS else tokenizer.decode
    return _load(args, make, prompts, spell, arrivals, limits, entries, None)


def _load(
    args: argparse.Namespace,
    make: Callable[[], Target],
    prompts: Prompts,
    spell: Callable[[Sequence[int]], str] | None,
    arrivals: Arrivals,
    limits: RunLimits,
    entries: tuple[TraceEntry, ...] | None,
    info: ModelInfo | None,
) -> Load:
    from colibri.load.lengths import parse_lengths
    from colibri.load.trace_file import trace_shape
    from colibri.load.workload import SamplingSpec, Workload, drawn

    drawn_shape = drawn(
        parse_lengths(args.input_len, "--input-len"), parse_lengths(args.output_len, "--output-len")
    )
    sampling = SamplingSpec(args.temperature, args.top_p, args.top_k)

    def workload(seed: int, distinct: int | None) -> Workload:
        return Workload(
            prompts,
            drawn_shape if entries is None else trace_shape(entries),
            seed=seed,
            distinct=distinct,
            sampling=sampling,
            ignore_eos=not args.stop_at_eos,
            spell=spell,
        )

    measured = workload(args.seed, getattr(args, "distinct", None))
    return Load(make, measured, arrivals, limits, workload(args.seed + 1, None), info)


def _text(path: Path) -> str:
    """The beginning of a text file, TEXT_BYTES at most."""
    from colibri.errors import ConfigError

    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES)
    except OSError as error:
        raise ConfigError("--text", "a readable file", error) from error
    # A character that the limit cuts in two is left out.
    text = raw.decode("utf-8", "ignore" if len(raw) == TEXT_BYTES else "strict")
    if not text.strip():
        raise ConfigError("--text", "some text", f"{len(raw)} bytes of none")
    return text
