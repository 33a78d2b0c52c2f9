"""`colibri VERB ...`. Exit codes: 0 done, 1 failed (the reason on stderr), 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from colibri import __version__
from colibri.cli import demo, expert, generate, inspect, router, serve
from colibri.cli.parser import Parser
from colibri.cli.terminal import Terminated, sigterm_unwinds
from colibri.errors import ColibriError

VERBS = {
    "demo": demo,
    "generate": generate,
    "serve": serve,
    "inspect": inspect,
    "expert": expert,
    "router": router,
}


def build_parser() -> Parser:
    parser = Parser(
        prog="colibri",
        description="Mixture-of-Experts language models served by expert workers over gRPC, bit for bit.",
    )
    parser.add_argument("--version", action="version", version=f"colibri {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in VERBS.items():
        summary = (module.__doc__ or "").strip().splitlines()[0]
        verb = verbs.add_parser(name, help=summary, description=summary)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
        parser.verbs[name] = verb
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        with sigterm_unwinds():
            return int(args.run(args))
    except ColibriError as error:
        print(f"colibri {args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"colibri {args.verb}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain again at exit, when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
