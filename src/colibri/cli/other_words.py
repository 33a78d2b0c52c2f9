"""Words that users bring from other programs, and what they are called here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from colibri.suggest import nearest

#: Options of other servers and clients, without dashes -> ours, the likeliest first.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "address": ("target", "listen"),
    "api-key": ("token-file", "tokens"),
    "bind": ("listen",),
    "cert": ("tls-cert",),
    "concurrency": ("users",),
    "cpu-claims": ("cpu-locks",),
    "ctx-size": ("kv-tokens",),
    "cuda": ("device",),
    "dtype": ("compute-mode",),
    "gpu": ("device",),
    "gpus": ("device",),
    "host": ("listen", "target"),
    "key": ("tls-key",),
    "max-model-len": ("kv-tokens",),
    "max-new-tokens": ("max-tokens",),
    "max-num-batched-tokens": ("prefill-chunk",),
    "max-num-seqs": ("max-running",),
    "n-gpu-layers": ("device",),
    "n-predict": ("max-tokens",),
    "num-prompts": ("requests",),
    "num-threads": ("threads", "cpu-threads"),
    "num-workers": ("workers",),
    "port": ("listen", "target"),
    "ray": ("launcher",),
    "request-rate": ("rate",),
    "server": ("target",),
    "ssl-certfile": ("tls-cert",),
    "ssl-keyfile": ("tls-key",),
    "temp": ("temperature",),
    "tensor-parallel-size": ("workers",),
    "tp": ("workers",),
    "url": ("target",),
}
VERBS: Mapping[str, str] = {
    "benchmark": "bench",
    "collect-env": "doctor",
    "help": "--help",
    "info": "inspect",
    "launch": "serve",
    "list": "status",
    "ls": "status",
    "ps": "status",
    "run": "generate",
    "show": "inspect",
    "start": "serve",
    "stop": "down",
    "version": "--version",
    "worker": "expert",
}


def meant_option(
    name: str, known: Collection[str], spelled: Callable[[str], str] = str, written: str = ""
) -> str:
    """`; did you mean 'x'?` for an unknown option, or nothing where no known one is meant or close.

    name: the option without dashes.
    known: the options there are, as they are written in its place.
    spelled: how an option without dashes is written there.
    written: `name` as it was written there, where that differs.
    """
    for option in OPTIONS.get(name, ()):
        if spelled(option) in known:
            return f"; did you mean {spelled(option)!r}?"
    return nearest(written or name, known)


def meant_verb(word: str, known: Collection[str]) -> str:
    """`; did you mean 'x'?` for an unknown verb.

    known: the verbs, and the options that may stand in their place.
    """
    verb = VERBS.get(word)
    return f"; did you mean {verb!r}?" if verb in known else nearest(word, known)
