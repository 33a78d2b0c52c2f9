"""The table of verbs: what `--help` prints of a verb is what its module says, and help imports no verb."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

from colibri.cli.parser import leaves
from colibri.cli.verb import Verb
from colibri.cli.verbs import VERBS, build_parser

HEAVY = ("grpc", "google.protobuf", "numpy", "rich", "tokenizers", "jinja2", "safetensors", "yaml", "httpx")
HELP = """
import sys
from colibri.cli.main import main
try:
    main({argv})
except SystemExit as end:
    assert end.code == 0, end.code
import json
print(json.dumps(list(sys.modules)))
"""


def all_verbs() -> list[Verb]:
    found = list(VERBS.values())
    for verb in VERBS.values():
        found += getattr(import_module(verb.module), "VERBS", {}).values()
    return found


@pytest.mark.parametrize("verb", all_verbs(), ids=lambda verb: verb.module)
def test_a_summary_is_the_first_line_of_its_module(verb: Verb) -> None:
    assert verb.summary == (import_module(verb.module).__doc__ or "").strip().splitlines()[0]


@pytest.mark.parametrize("argv", [["--help"], ["--version"]])
def test_help_imports_no_verb(argv: list[str]) -> None:
    program = HELP.format(argv=argv)
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(json.loads(result.stdout.splitlines()[-1]))
    assert "colibri.cli.verbs" in imported
    assert not imported & {verb.module for verb in VERBS.values()}


def test_one_verb_imports_no_other() -> None:
    program = HELP.format(argv=["generate", "--help"])
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(json.loads(result.stdout.splitlines()[-1]))
    assert "colibri.cli.generate" in imported
    others = {verb.module for name, verb in VERBS.items() if name != "generate"}
    assert not imported & others


def test_no_help_waits_for_anything_heavy() -> None:
    """All verbs in one process."""
    program = """
import json, sys
from colibri.cli.main import main
for argv in json.loads(sys.argv[1]):
    try:
        main([*argv, "--help"])
    except SystemExit as end:
        assert end.code == 0, (argv, end.code)
print(json.dumps(list(sys.modules)))
"""
    verbs = json.dumps([path for path, _ in leaves(build_parser())])
    result = subprocess.run(
        [sys.executable, "-c", program, verbs], capture_output=True, text=True, timeout=60, check=True
    )
    assert not set(HEAVY) & set(json.loads(result.stdout.splitlines()[-1]))


def test_every_verb_can_run() -> None:
    for path, parser in leaves(build_parser()):
        assert callable(parser.get_default("run")), path
        assert parser.get_default("prog") == "colibri " + " ".join(path)
