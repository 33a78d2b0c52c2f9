"""`colibri VERB ...`. Exit codes: 0 done, 1 failed (the reason on stderr), 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence

from colibri.cli import standard_streams
from colibri.cli.model import locate_model
from colibri.cli.signals import Terminated, handlers_run, sigterm_unwinds
from colibri.cli.verbs import build_parser
from colibri.errors import ColibriError


def main(argv: Sequence[str] | None = None) -> int:
    """argv: None: the process's own, whose standard streams are then taken in hand."""
    if argv is None:
        standard_streams.install()
    program, hurried = ["colibri"], False
    try:
        code = _run(argv, program)
        standard_streams.finish_output(hurried=False)
        return code
    except ColibriError as error:
        why, code = str(error), 1
    except KeyboardInterrupt:
        why, code, hurried = "interrupted", 128 + signal.SIGINT, True
    except Terminated:
        why, code, hurried = "", 128 + signal.SIGTERM, True
    except BrokenPipeError:  # whoever read our output has left
        why, code = "", 1
    except OSError as error:
        why, code = _spelled(error), 1
    except MemoryError as error:
        why, code = f"out of memory{f': {error}' if str(error) else ''}; {_MEMORY_ADVICE}", 1
    except (ImportError, RuntimeError) as error:
        if not str(error).endswith(_NO_ROOM):
            raise
        why, code = f"{error}; {_MEMORY_ADVICE}", 1
    try:
        standard_streams.finish_output(hurried=hurried)
    except OSError:
        standard_streams.drop_output()
    if why:
        with contextlib.suppress(OSError):
            print(f"{program[0]}: {why}", file=sys.stderr)
    return code


#: How the loader and Python's threads say that the process got no more memory, or no more threads.
_NO_ROOM = ("failed to map segment from shared object", "Cannot allocate memory", "can't start new thread")
_MEMORY_ADVICE = "a smaller model or --kv-tokens, or more memory (`ulimit -v`, the control group's limit)"


def _run(argv: Sequence[str] | None, program: list[str]) -> int:
    """program: its name, for errors, once it is known."""
    try:
        args = build_parser().parse_args(argv)
    except SystemExit:
        standard_streams.finish_output(hurried=False)
        raise
    program[:] = [args.prog]
    with sigterm_unwinds(), handlers_run():
        if args.verb != "expert":  # it settles on its CPUs before anything large is imported
            locate_model(args)
        return int(args.run(args))


def _spelled(error: OSError) -> str:
    """`FILE: No space left on device`, without Python's number."""
    if error.strerror is None:
        return str(error) or type(error).__name__
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


if __name__ == "__main__":
    raise SystemExit(main())
