"""Runs a bad input against the loaders of this process or against a real command; returns what was not as it must
be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.errors import CheckpointError
from colibri.models.chat_renderer import load_chat_renderer
from colibri.models.checkpoint import Checkpoint
from colibri.models.tokenizer import Tokenizer
from tests.integration.bad_input.case import MODEL, Refusal
from tests.integration.bad_input.checkpoint_case import CheckpointCase, Stage

COLIBRI = [sys.executable, "-P", "-m", "colibri.cli.main"]
#: Bound of one command; each takes a fraction of a second.
COMMAND_S = 60.0
#: Lines of the log: what a first load believed, and a worker's words with the path that callers are not told.
_LOGGED = (": first load of ", "w0: told as ", "w1: told as ")
#: Bound of one refusal by a loader: nothing was read or allocated by what the input claims.
LOADER_S = 15.0


def by_loaders(case: CheckpointCase, folder: Path) -> str:
    """Empty where this process's loaders refuse the folder as they must."""
    begun = time.monotonic()
    try:
        if case.stage is Stage.OPEN:
            Checkpoint.open(folder)
        elif case.stage is Stage.TOKENIZER:
            Tokenizer.load(folder, Checkpoint.open(folder).config)
        elif case.stage is Stage.TEMPLATE:
            load_chat_renderer(folder, Tokenizer.load(folder))
        else:
            with assemble(DeploymentOptions(folder, workers=0)):
                pass
    except CheckpointError as error:
        if error.code is not case.refusal.code:
            return f"expected {case.refusal.code}, got {error.code}"
        if time.monotonic() - begun > LOADER_S:
            return f"took {time.monotonic() - begun:.1f} s"
        return case.refusal.differs(error.message, {str(folder): MODEL})
    return "was not refused"


def by_command(
    arguments: Sequence[str],
    refusal: Refusal,
    *,
    folders: Mapping[str, str],
    code: int = 1,
    noisy: bool = False,
) -> str:
    """Empty where `colibri ARGUMENTS` ends with `code` and says the refusal, in one line and nothing else but what
    is logged of every load.

    noisy: a library may have spoken before.
    """
    try:
        run = subprocess.run(
            [*COLIBRI, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {COMMAND_S:g} s"
    lines = [line for line in run.stderr.splitlines() if not any(words in line for words in _LOGGED)]
    if run.returncode != code or run.stdout or "Traceback" in run.stderr or not lines:
        return f"expected code {code} and one line, got code {run.returncode}, {run.stdout!r}, {run.stderr!r}"
    if len(lines) > 1 and not noisy:
        return f"expected one line, got {lines}"
    program, _, message = lines[-1].partition(": ")
    if program != " ".join(("colibri", *arguments[:1])) and program != "colibri":
        return f"expected a line of colibri's, got {lines[-1]!r}"
    # What a worker says comes without the folder.
    return refusal.differs(message, folders) and refusal.differs(f"{MODEL}/{message}", folders)


def verbs_for(case: CheckpointCase, folder: Path) -> list[list[str]]:
    """The command lines that must refuse a checkpoint of this case."""
    chat = ["--chat"] if case.stage is Stage.TEMPLATE else []
    lines = [
        ["generate", str(folder), "--prompt=w1", "--workers=1", "--max-tokens=1", *chat],
        ["serve", str(folder), f"--listen=unix:{folder}.sock", "--workers=2"],
    ]
    return [["inspect", str(folder)], *lines] if case.stage is Stage.OPEN else lines
