"""Flags beat the environment beats the file beats the default; every refusal names its source."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from colibri.cli.parser import Parser, integer, leaves
from colibri.cli.settings import VerbParser, resolve, settings, variable
from colibri.cli.verbs import build_parser


def parse(*argv: str) -> Any:
    return build_parser().parse_args(argv)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "colibri.yaml"
    path.write_text(
        "# shared\nworkers: 3\nkv-page: 32\nmodel: /models/x\n"
        "serve:\n  workers: 5\n  json: yes\nrouter:\n  expert: [a:1, b:2]\nbench:\n  rounds: 7\n  decode: {rounds: 8}\n"
    )
    return path


def test_precedence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"--config={file}"
    assert parse("inspect", "m").workers == 2
    assert parse("inspect", "m", config).workers == 3
    monkeypatch.setenv("COLIBRI_WORKERS", "4")
    assert parse("inspect", "m", config).workers == 4
    assert parse("inspect", "m", config, "--workers=6").workers == 6
    assert parse("inspect", "m").workers == 4
    sources = {item.key: (item.source, item.where) for item in parse("inspect", "m", config).option_sources}
    assert sources["workers"] == ("environment", "COLIBRI_WORKERS")
    assert sources["model"] == ("flag", "")
    assert sources["json"] == ("default", "")


def test_sections_go_before_what_stands_around_them(file: Path) -> None:
    config = f"--config={file}"
    assert parse("serve", config).workers == 5
    assert parse("generate", "--prompt=x", config).workers == 3
    assert parse("bench", "prefill", config).rounds == 7
    assert parse("bench", "decode", config).rounds == 8


def test_arguments_and_required_options_may_come_from_the_file(file: Path) -> None:
    args = parse("router", f"--config={file}")
    assert args.model == Path("/models/x")
    assert args.expert == ["a:1", "b:2"]
    assert parse("router", "other", f"--config={file}").model == Path("other")


def test_a_flag_replaces_a_list(file: Path) -> None:
    assert parse("router", f"--config={file}", "--expert=c:3").expert == ["c:3"]


def test_lists_and_switches_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_EXPERT", "a:1,b:2")
    monkeypatch.setenv("COLIBRI_JSON", "true")
    args = parse("router", "m")
    assert args.expert == ["a:1", "b:2"]
    assert args.json is True
    monkeypatch.setenv("COLIBRI_JSON", "0")
    assert parse("router", "m").json is False


def test_the_file_may_be_named_in_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_CONFIG", str(file))
    assert parse("inspect").workers == 3


def test_none_takes_neither(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_CONFIG", str(file))
    monkeypatch.setenv("COLIBRI_WORKERS", "nonsense")
    monkeypatch.setenv("COLIBRI_NONSENSE", "1")
    assert parse("inspect", "m", "--config=none").workers == 2


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_WORKERS", "")
    assert parse("inspect", "m").workers == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("COLIBRI_WORKERS", "-1", "COLIBRI_WORKERS: expected a whole number from 0 to 256, got '-1'"),
        (
            "COLIBRI_LINK",
            "grcp",
            "COLIBRI_LINK: expected one of auto, grpc, shared-memory, got 'grcp'; did you mean",
        ),
        ("COLIBRI_JSON", "maybe", "COLIBRI_JSON: expected true or false, got 'maybe'"),
        ("COLIBRI_WORKRES", "1", "no option goes by COLIBRI_WORKRES; did you mean 'COLIBRI_WORKERS'?"),
    ],
)
def test_bad_variables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    assert f"colibri serve: {'environment: ' if 'no option' in message else ''}{message}" in refused(
        capsys, "serve", "m"
    )


def test_variables_of_other_verbs_and_of_other_things_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "COLIBRI_EXPERT",  # an option, but not of inspect
        "COLIBRI_HOME",
        "COLIBRI_SERVICE_HOST",  # these a Kubernetes service called colibri gives to every pod
        "COLIBRI_SERVICE_PORT_GRPC",
        "COLIBRI_PORT",
        "COLIBRI_PORT_50051_TCP_ADDR",
        "COLIBRI_TEST_SEED",
        "COLIBRI_BENCH_MODELS",  # read by benchmarks, whose commands have it, too
    ):
        monkeypatch.setenv(name, "x")
    assert parse("inspect", "m").workers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\nwrokers: 3", ":3: expected an option of any verb, got 'wrokers'; did you mean 'workers'?"),
        (
            "serve:\n  prompt: hi",
            ":2: expected an option of `colibri serve`, got 'prompt'",
        ),
        (
            "serv: {workers: 3}",
            ":1: expected the name of a verb or an option of any verb, got a section 'serv'; did",
        ),
        ("workers: {a: 1}", ":1: expected a value, got a section 'workers'"),
        ("serve: 3", ":1: expected a section of options, got 'serve'"),
        ("workers: 1\nworkers: 2", ":2: expected each key once, got 'workers' again (line 1)"),
        ("workers:", ":1: expected a value for workers, got none"),
        ("workers: [1, 2]", ":1: workers: expected one value, got a list of 2"),
        ("workers: [[1]]", ":1: expected a plain value in workers, got a list"),
        ("workers: many", ":1: workers: expected a whole number from 0 to 256, got 'many'"),
        ("workers: 0x2", ":1: workers: expected a whole number from 0 to 256, got '0x2'"),
        ("json: perhaps", ":1: json: expected true or false, got 'perhaps'"),
        ("- workers", ":1: expected keys with values, got a list"),
        ("[1, 2]: 3", ":1: expected a name as key, got a list"),
        ("a: [1", ":1: expected YAML, got expected ',' or ']'"),
        ("a: b: c", ":1: expected YAML, got mapping values are not allowed here"),
        ("config: other.yaml", ":1: expected a section of options, got 'config' "),
        ("a: {b: {c: {d: {e: {f: {g: 1}}}}}}", ":1: expected sections at most 4 deep"),
        ("workers: !!python/object/apply:os.getpid []", ":1: workers: expected one value, got a list of 0"),
        ("\x00", "expected YAML, got"),
    ],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    error = refused(capsys, "serve", "m", f"--config={path}")
    assert message in error.replace("\n", " ")
    assert error.startswith("colibri serve: ")


def test_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--config: expected a file that can be read" in refused(
        capsys, "serve", "m", f"--config={tmp_path}/no"
    )
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (1 << 20) + b"\n")
    assert "expected at most 1048576 bytes, got more" in refused(capsys, "serve", "m", f"--config={big}")
    deep = tmp_path / "deep.yaml"
    deep.write_text("a: " + "[" * 5000 + "]" * 5000)
    assert str(deep) in refused(capsys, "serve", "m", f"--config={deep}")


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("# nothing\n")
    assert parse("inspect", "m", f"--config={path}").workers == 2


def test_a_flag_is_refused_whatever_the_file_says(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "--workers: expected a whole number" in refused(capsys, "serve", f"--config={file}", "--workers=x")
    assert "unknown argument '--wrokers=1'; did you mean '--workers'?" in refused(
        capsys, "serve", "m", "--wrokers=1"
    )


def exclusive() -> VerbParser:
    root = Parser(prog="colibri")
    verbs = root.add_subparsers(dest="verb", parser_class=VerbParser)
    parser: VerbParser = verbs.add_parser("try", root=root)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--near", type=integer(1, 9), help="near")
    group.add_argument("--far", type=integer(1, 9), help="far")
    parser.add_argument("--loud", action=argparse.BooleanOptionalAction, default=True, help="loud")
    parser.fill()
    return parser


def test_options_that_exclude_one_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_NEAR", "3")
    assert exclusive().parse_args([]).near == 3
    args = exclusive().parse_args(["--far=2"])
    assert (args.near, args.far) == (None, 2)
    monkeypatch.setenv("COLIBRI_FAR", "3")
    with pytest.raises(SystemExit):
        exclusive().parse_args([])
    assert "COLIBRI_FAR: far excludes near of COLIBRI_NEAR" in capsys.readouterr().err


def test_a_switch_with_its_opposite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_NEAR", "3")
    monkeypatch.setenv("COLIBRI_LOUD", "off")
    assert exclusive().parse_args([]).loud is False
    assert exclusive().parse_args(["--loud"]).loud is True


def test_resolving_changes_no_parser() -> None:
    parser = build_parser().verbs["generate"].fill()
    assert isinstance(parser, VerbParser)
    before = [(action.dest, action.default, action.required) for action in parser._actions]
    resolve(parser, ["--workers=3"], {"COLIBRI_KV_PAGE": "32"})
    assert [(action.dest, action.default, action.required) for action in parser._actions] == before


def test_keys_and_variables_are_unique() -> None:
    for path, parser in leaves(build_parser()):
        names = [variable(key) for key in settings(parser)]
        assert len(names) == len(set(names)), path
