"""`python -m colibri.cli.docs [--check] [FOLDER]`: the pages of docs/cli, made from the parsers.

--check writes nothing and exits 1 where a page differs from what would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from colibri.cli.parser import Parser
from colibri.cli.settings import settings, variable
from colibri.cli.verbs import build_parser

DEFAULT_FOLDER = Path("docs/cli")
_MADE = "<!-- Made by `python -m colibri.cli.docs`; edit the options' help texts instead. -->"
_EXIT = "Exit codes: 0 done, 1 failed (the reason on stderr), 2 wrong usage, 130 interrupted."


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    root = build_parser()
    index = ["# The command line", "", _MADE, "", "| verb | what it does |", "| --- | --- |"]
    found = {}
    for name, parser in root.verbs.items():
        parser.fill()
        summary = (parser.description or "").partition("\n\n")[0]
        index.append(f"| [`colibri {name}`]({name}.md) | {summary} |")
        found[f"{name}.md"] = "\n".join([*_page(parser, 1), _EXIT, ""])
    about = (root.verbs["config"].description or "").partition("\n\n")[2]
    index += ["", "## Where options come from", "", *_paragraphs(about), _EXIT]
    return {"README.md": "\n".join([*index, ""]), **found}


def _page(parser: Parser, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {parser.prog}"
    yield ""
    if depth == 1:
        yield from (_MADE, "")
    yield from _paragraphs(parser.description or "")
    if parser.verbs:
        for verb in parser.verbs.values():
            verb.fill()
            yield from _page(verb, depth + 1)
        return
    known = settings(parser)
    positional = [action for action in parser._actions if not action.option_strings]
    required = [action for action in parser._actions if action.option_strings and action.required]
    words = [parser.prog, *(_spelled(action) for action in required), "[OPTION ...]"]
    yield from (
        "```",
        " ".join([*words, *(str(action.metavar or action.dest) for action in positional)]),
        "```",
        "",
    )
    if positional:
        yield from ("| argument | meaning |", "| --- | --- |")
        for action in positional:
            yield f"| `{action.metavar or action.dest}` | {_cell(_help(parser, action))} |"
        yield ""
    yield from ("| option | default | environment | meaning |", "| --- | --- | --- | --- |")
    variables = {id(action): variable(key) for key, action in known.items()}
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS and action.dest != "help":
            name = variables.get(id(action), "COLIBRI_CONFIG" if action.dest == "config" else "")
            yield (
                f"| `{_cell(_spelled(action))}` | {_cell(_default(action))} | `{name}` "
                f"| {_cell(_help(parser, action))} |"
            )
    yield ""


def _spelled(action: argparse.Action) -> str:
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = action.metavar or ("VALUE" if action.choices else action.dest.upper())
    return f"{names} {value}"


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.nargs == 0 or action.default in (None, "", argparse.SUPPRESS):
        return ""
    return f"`{action.default}`"


def _help(parser: Parser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    text = (action.help or "") % values
    if action.choices is not None:
        text += "; one of " + ", ".join(f"`{choice}`" for choice in action.choices)
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _paragraphs(text: str) -> Iterator[str]:
    """Markdown of a description: what is indented is code."""
    for part in text.strip().split("\n\n"):
        if part.startswith("  "):
            lines = part.split("\n")
            yield from ("```", *(line.removeprefix("  ") for line in lines), "```", "")
        elif part:
            yield from (part, "")


def stale(folder: Path) -> list[str]:
    """Names of the pages that differ from the code, those that no verb has any more included."""
    made = pages()
    there = {path.name: path.read_text() for path in folder.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="colibri.cli.docs", description="Write the pages of docs/cli.")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="only tell which pages are not current")
    args = parser.parse_args(argv)
    old = stale(args.folder)
    if args.check:
        for name in old:
            print(f"{args.folder / name} is not current: run `python -m colibri.cli.docs`", file=sys.stderr)
        return 1 if old else 0
    args.folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name in old:
        if name in made:
            (args.folder / name).write_text(made[name])
        else:
            (args.folder / name).unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
