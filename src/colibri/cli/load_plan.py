"""What the options of a load mean: target, workload, arrivals, limits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from colibri.bench.load.arrivals import Arrivals, ClosedLoop, gamma, limited
from colibri.bench.load.lengths import parse_lengths
from colibri.bench.load.prompts import Prompts, RandomIds, TextIds
from colibri.bench.load.result import RunLimits
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.bench.load.targets.openai_http import OpenAITarget, PromptForm
from colibri.bench.load.targets.target import Target
from colibri.bench.load.trace_file import TraceEntry, read_trace, trace_arrivals, trace_shape
from colibri.bench.load.whole import Load
from colibri.bench.load.workload import SamplingSpec, Workload, drawn
from colibri.cli.load_options import DEFAULT_INPUT, DEFAULT_OUTPUT, DEFAULT_REQUESTS
from colibri.cli.security_options import CHANNEL_OPTIONS, channel_security
from colibri.client import Client, ModelInfo
from colibri.errors import ConfigError
from colibri.models.tokenizer import Tokenizer

#: Of a text file, so much is cut into prompts: what one call to Tokenize takes.
TEXT_BYTES = 256 << 10


def read_load(args: argparse.Namespace) -> Load:
    """What the options say. Asks a colibri server for its model and its tokenizer. Raises ConfigError for options
    that do not fit together, ColibriError when the server does not answer."""
    _check(args)
    # A closed loop's bound is its users.
    in_flight = max(args.in_flight, getattr(args, "users", 0))
    limits = RunLimits(in_flight=in_flight, request_timeout_s=args.timeout, drain_s=args.timeout)
    requests, duration = getattr(args, "requests", None), getattr(args, "duration", None)
    if requests is None and duration is None and not hasattr(args, "trace"):
        requests = DEFAULT_REQUESTS
    entries: tuple[TraceEntry, ...] | None = None
    arrivals: Arrivals
    if hasattr(args, "trace"):
        entries = read_trace(args.trace)
        offsets = trace_arrivals(entries, getattr(args, "trace_speed", 1.0)).offsets
        arrivals = limited(offsets, len(offsets) if requests is None else requests, duration)
    elif hasattr(args, "users"):
        arrivals = ClosedLoop(args.users, requests, duration, getattr(args, "think", 0.0))
    else:
        arrivals = limited(gamma(args.rate, getattr(args, "burstiness", 1.0), args.seed), requests, duration)
    if hasattr(args, "openai"):
        return _openai(args, arrivals, limits, entries)
    return _colibri(args, arrivals, limits, entries)


#: option -> another one without which it would do nothing.
_NEEDS = {
    "openai_model": "openai",
    "openai_form": "openai",
    "tokenizer": "openai",
    "vocab": "openai",
    "think": "users",
    "burstiness": "rate",
    "trace_speed": "trace",
    "goodput_share": "goodput",
    "oracle_cache": "oracle",
    "backend": "oracle",
    "threads": "oracle",
}
#: Pairs of which only one can be heeded.
_EITHER = (
    ("trace", "input_len"),
    ("trace", "output_len"),
    ("tokenizer", "vocab"),
    ("openai", "resume"),
    ("openai", "oracle"),
    *(("openai", name) for name in CHANNEL_OPTIONS),
)


def _check(args: argparse.Namespace) -> None:
    """Options that would do nothing are refused. Raises ConfigError."""

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    for name, needed in _NEEDS.items():
        if hasattr(args, name) and not hasattr(args, needed):
            raise ConfigError(flag(name), f"{flag(needed)} beside it", "none")
    for one, other in _EITHER:
        if hasattr(args, one) and getattr(args, other, False):
            raise ConfigError(flag(other), f"no {flag(one)} beside it", "both")


def _colibri(
    args: argparse.Namespace, arrivals: Arrivals, limits: RunLimits, entries: tuple[TraceEntry, ...] | None
) -> Load:
    security = channel_security(args)
    with Client(args.target, security=security) as client:
        client.wait_ready(limits.connect_timeout_s)
        info = client.model_info()
        prompts: Prompts = RandomIds(info.vocab, info.eos_ids)
        if hasattr(args, "text"):
            prompts = TextIds(client.tokenize(_text(args.text), add_special=False, timeout_s=60.0).ids)

    def make() -> GrpcTarget:
        return GrpcTarget(args.target, in_flight=limits.in_flight, resume=args.resume, security=security)

    return _load(args, make, prompts, None, arrivals, limits, entries, info)


def _openai(
    args: argparse.Namespace, arrivals: Arrivals, limits: RunLimits, entries: tuple[TraceEntry, ...] | None
) -> Load:
    form = PromptForm(getattr(args, "openai_form", PromptForm.IDS.value))
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
    model, key = getattr(args, "openai_model", "default"), os.environ.get("OPENAI_API_KEY")

    def make() -> OpenAITarget:
        return OpenAITarget(args.openai, model, form, in_flight=limits.in_flight, api_key=key)

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
    drawn_shape = drawn(
        parse_lengths(getattr(args, "input_len", DEFAULT_INPUT), "--input-len"),
        parse_lengths(getattr(args, "output_len", DEFAULT_OUTPUT), "--output-len"),
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
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES)
    except OSError as error:
        raise ConfigError("--text", "a readable file", error) from error
    if len(raw) == TEXT_BYTES:
        # The limit may cut a character in two.
        while raw and raw[-1] & 0xC0 == 0x80:
            raw = raw[:-1]
        raw = raw[:-1]
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("--text", "UTF-8", error) from None
    if not text.strip():
        raise ConfigError("--text", "some text", f"{len(raw)} bytes of none")
    return text
