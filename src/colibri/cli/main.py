"""`colibri VERB ...`. Exit codes: 0 done, 1 failed (the reason on stderr), 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from colibri.cli.signals import Terminated, handlers_run, sigterm_unwinds
from colibri.cli.verbs import build_parser
from colibri.errors import ColibriError


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        with sigterm_unwinds(), handlers_run():
            return int(args.run(args))
    except ColibriError as error:
        print(f"{args.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{args.prog}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain again at exit, when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
