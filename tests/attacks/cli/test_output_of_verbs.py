"""Every verb on a full device, without streams and on an ASCII terminal: a message and an exit code, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from colibri.cli.parser import leaves
from colibri.cli.verbs import build_parser
from tests.support.tries import Tries

ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
#: The streams of a program that is run as `sh -c 'exec "$@" STREAMS'`.
FULL, CLOSED = ">/dev/full", "0<&- >&- 2>&-"
VERBS = [path for path, _ in leaves(build_parser())]


def colibri(
    *argv: str, streams: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "colibri.cli.main", *argv],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def every_verb(act: Callable[[tuple[str, ...]], subprocess.CompletedProcess[str]]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for path, done in zip(VERBS, pool.map(act, VERBS), strict=True):
            assert "Traceback" not in done.stderr, (path, done.stderr)
            assert "Exception ignored" not in done.stderr, (path, done.stderr)


def test_help_of_every_verb_on_a_full_device(tries: Tries) -> None:
    def act(path: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        done = colibri(*path, "--help", streams=FULL)
        assert done.returncode == 1, (path, done)
        assert done.stderr == "colibri: standard output: No space left on device\n", path
        return done

    every_verb(act)
    tries("help of a verb, on a full device", len(VERBS))


@pytest.mark.attacks
def test_every_verb_without_streams(tries: Tries) -> None:
    """Its arguments are wrong, or what it asks for is not there: whatever it says goes nowhere."""

    def act(path: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        done = colibri(*path, "--no-such-option", streams=CLOSED)
        assert done.returncode == 2, (path, done)
        return done

    every_verb(act)
    tries("a verb without standard streams", len(VERBS))


#: Verbs that read something here and now, by what they print.
READING = {
    "inspect": ("inspect", "{model}"),
    "config show": ("config", "show"),
    "doctor": ("doctor",),
    "generate": ("generate", "{model}", "--workers=0", "--prompt=é€", "--max-tokens=4"),
    "place": ("place", "--dry-run", "--from-file={loads}"),
}


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("kind", ["ascii", "full", "closed"])
def test_what_is_printed(verb: str, kind: str, tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    """The model's name holds a character that ASCII lacks."""
    model = tmp_path / "modèle"
    model.symlink_to(tiny_mixtral)
    loads = tmp_path / "é.json"
    loads.write_text("{}")
    argv = [each.format(model=model, loads=loads) for each in READING[verb]]
    streams = {"ascii": "", "full": FULL, "closed": ">&-"}[kind]
    done = colibri(*argv, streams=streams, env=ASCII if kind == "ascii" else None)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if kind == "ascii":
        assert done.stdout.isascii()
        assert done.stderr.isascii()
        assert done.returncode in (0, 1), done.stderr
    elif verb != "place":
        assert done.returncode == 1
        expected = "No space left on device" if kind == "full" else "Bad file descriptor"
        assert f"standard output: {expected}\n" in done.stderr
    tries("a verb on a stream that takes nothing, or ASCII", 1)
