"""Usage errors: exit code 2, the option named, the nearest match offered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from colibri.cli import other_words
from colibri.cli.main import main
from colibri.cli.parser import leaves
from colibri.cli.verbs import VERBS, build_parser
from colibri.suggest import nearest


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generat", "m"], "got 'generat'; did you mean 'generate'?"),
        ([], "the following arguments are required: VERB"),
        (["generate", "m"], "--prompt"),
        (
            ["generate", "m", "--prompt", "x", "--worker", "2"],
            "unknown argument '--worker'; did you mean '--workers'?",
        ),
        (["generate", "m", "--prompt", "x", "--transport", "unxi"], "got 'unxi'; did you mean 'unix'?"),
        (
            ["generate", "m", "--prompt", "x", "--compute-mode", "bf61"],
            "--compute-mode: expected one of fp32, bf16",
        ),
        (
            ["generate", "m", "--prompt", "x", "--workers", "-1"],
            "--workers: expected a whole number from 0 to 256, got '-1'",
        ),
        (["generate", "m", "--prompt", "x", "--workers", "two"], "--workers: expected a whole number"),
        (
            ["generate", "m", "--prompt", "x", "--kv-page", "17"],
            "--kv-page: expected one of 8, 16, 32, 64, got 17",
        ),
        (
            ["generate", "m", "--prompt", "x", "--temperature", "nan"],
            "--temperature: expected a number from 0 to 100",
        ),
        (["generate", "m", "--prompt", "x", "--top-p", "1.5"], "--top-p: expected a number from 0 to 1"),
        (["generate", "m", "--prompt", "x", "--seed", str(1 << 64)], "--seed: expected a whole number"),
        (["serve", "m", "--listn", "x"], "did you mean '--listen'?"),
        (["inspect"], "MODEL"),
        (
            ["generate", "m", "--prompt", "a\udcff"],
            "--prompt: expected text in UTF-8, got byte ff as character 2",
        ),
        (["generate", "m", "--prompt=x", "--stop", "\udc80"], "--stop: expected text in UTF-8, got byte 80"),
        (["chat", "m", "--system", "\udcfe"], "--system: expected text in UTF-8, got byte fe"),
        (
            ["generate", "m", "--prompt-ids=-1,5"],
            "--prompt-ids: expected token ids from 0, separated by commas, got '-1'",
        ),
        (["generate", "m", "--prompt-ids=4294967296"], "--prompt-ids: expected token ids from 0"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert message in refused(capsys, *argv)


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown argument '--prom'" in refused(capsys, "demo", "--prom", "x")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert "usage: colibri " + verb in capsys.readouterr().out


def test_every_option_has_a_help_text() -> None:
    for verb, parser in leaves(build_parser()):
        for action in parser._actions:
            assert action.help, f"{verb} {action.option_strings}"


HEAVY = ("grpc", "numpy", "rich", "tokenizers", "jinja2", "safetensors")


def test_help_and_version_load_nothing_heavy() -> None:
    program = (
        "import sys; from colibri.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_nearest_says_nothing_where_nothing_is_near() -> None:
    assert nearest("--zzz", ["--workers"]) == ""


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["serve", "m", "--port", "1"], "; did you mean '--listen'?"),
        (["serve", "m", "--host=::"], "; did you mean '--listen'?"),
        (["status", "--host", "h"], "; did you mean '--target'?"),
        (["serve", "--model", "m"], "; the model stands alone: colibri serve MODEL"),
        (["bench", "decode", "--model", "m"], "; the model stands alone: colibri bench decode MODEL"),
        (["generate", "m", "--max-new-tokens", "3"], "; did you mean '--max-tokens'?"),
        (["serve", "m", "--tensor-parallel-size=2"], "; did you mean '--workers'?"),
        (["serve", "m", "--gpus=2"], "; did you mean '--device'?"),
        (["serve", "m", "--cert=x"], "; did you mean '--tls-cert'?"),
        (["generate", "m", "-n", "3"], "; did you mean '--n'?"),
        (["gen"], "; did you mean 'generate'?"),
        (["version"], "; did you mean '--version'?"),
        (["help"], "; did you mean '--help'?"),
        (["list"], "; did you mean 'status'?"),
        (["run"], "; did you mean 'generate'?"),
    ],
)
def test_words_of_other_programs_lead_to_ours(
    capsys: pytest.CaptureFixture[str], argv: list[str], near: str
) -> None:
    assert near in refused(capsys, *argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["generate", "m", "--verbose"],
        ["serve", "m", "--quiet"],
        ["serve", "m", "--debug"],
        ["serve", "m", "--password", "x"],
        ["serve", "m", "--seed", "1"],
        ["generate", "m", "-p", "hi"],
        ["generate", "m", "--stream"],
        ["foo"],
    ],
)
def test_what_means_nothing_here_gets_no_hint(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """Neither the dashes nor a few letters in common make two options alike."""
    assert "did you mean" not in refused(capsys, *argv)


def test_every_hint_names_something_that_exists() -> None:
    root = build_parser()
    known = {option for _, leaf in leaves(root) for option in leaf._option_string_actions}
    for name, ours in other_words.OPTIONS.items():
        assert {f"--{option}" for option in ours} <= known, name
    for word, verb in other_words.VERBS.items():
        assert word not in root.verbs
        assert verb in root.verbs or verb in root._option_string_actions
