"""How every verb speaks while it runs: lines of the log, and the line that says that a service is ready."""

from __future__ import annotations

import re
import sys
import threading

from colibri.cli.standard_streams import STDOUT, announcer, log_writer

#: A ready line that nobody has taken by then is told in the log.
_READY_S = 10.0
_SETTLE_S = 0.2


#: What moves a cursor, paints, names windows or turns text around. Lines and tabs are text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Text that a model, a prompt or a server wrote, for stdout. Control characters, which a terminal would obey, are
    spelled out there; files and pipes get the text as it is."""
    if not sys.stdout.isatty():
        return text
    return spelled_out(text)


def spelled_out(text: str) -> str:
    """Text whose control characters a terminal shows instead of obeying them."""
    return _CONTROLS.sub(lambda found: repr(found.group())[1:-1], text)


def say(line: str) -> None:
    """One line on stderr, whole even when several threads speak. Never waits for its reader.

    Control characters are spelled out: a log is read on a terminal."""
    sys.stderr.write(spelled_out(line) + "\n")
    sys.stderr.flush()


def settle() -> None:
    """Lets the log come before what is printed next, where its reader is quick."""
    writer = log_writer()
    if writer is not None:
        writer.flush(_SETTLE_S)


def dropped_lines() -> int:
    """Lines of this process's log that never arrived."""
    writer = log_writer()
    return 0 if writer is None else writer.dropped


def announce(line: str) -> None:
    """A service's one line on stdout. The service goes on whether or not it can be written; the log says if not."""

    def failed(error: OSError) -> None:
        say(f"{STDOUT}: the ready line could not be written: {error.strerror}: {line}")

    writer = announcer(failed)
    if writer is None:
        print(line, flush=True)
        return
    writer.put(line.encode("utf-8", "backslashreplace") + b"\n")

    def watch() -> None:
        if not writer.close(_READY_S):
            say(f"{STDOUT}: nobody has read the ready line within {_READY_S:g} s: {line}")

    threading.Thread(target=watch, name="colibri-ready", daemon=True).start()
