"""docs/errors.md: every bad input of the tables with the error that it is answered with. `python -m
tests.integration.bad_input.page` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from colibri.v1 import expert_pb2
from tests.integration.bad_input import checkpoints as c
from tests.integration.bad_input import commands, requests
from tests.integration.bad_input import frames as fr
from tests.integration.bad_input.case import ANY, Refusal

PAGE = Path(__file__).resolve().parents[3] / "docs" / "errors.md"

_HEAD = f"""# Bad input and what it is answered with

Generated from the tables of the test suite by `python -m tests.integration.bad_input.page`; a test runs every line of
it and compares the text. Each error is one line that names the field, what was expected and what came, whatever was
quoted in it: control characters arrive escaped, long values cut. Nothing is allocated by what an input claims, a
refused input costs no process, and the next good request is answered as if nothing had been.

`<MODEL>` stands for the checkpoint's folder, `<FOLDER>` for another one, `{ANY}` for what differs from run to run.
Texts are those for a model with 300 tokens of vocabulary, 512 of context, 2 layers of 4 experts, hidden size 32.

How they arrive: a command prints `colibri VERB: ` and the line on stderr and ends with code 1, or 2 for wrong usage; a
gRPC call ends with the status and the line as its details, and says in its trailing metadata whether a retry can help
(`colibri-retryable`, `colibri-retry-after-ms`); a worker answers a frame with a refusal that holds the line, or ends
the stream where it cannot know which message it was.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]

    def section(title: str, lead: str, rows: Iterable[tuple[str, str, Refusal]]) -> None:
        parts.append(f"\n## {title}\n\n{lead}\n\n| input | answer | error |\n| --- | --- | --- |\n")
        parts.extend(
            f"| {_cell(how)} | {answer} | {_code(refusal.line)} |\n" for how, answer, refusal in rows
        )

    for title, lead, cases in (
        ("Checkpoints: folders and JSON", "Before any weight is read.", (*c.FOLDERS, *c.CONFIGS)),
        ("Checkpoints: safetensors", "Headers are checked completely; the data is mapped.", c.SAFETENSORS),
        (
            "Checkpoints: tensors and index",
            "What config.json says against what the files hold.",
            (*c.TENSORS, *c.INDICES),
        ),
        (
            "Checkpoints: tokenizer and chat template",
            "Where text is wanted.",
            (*c.TOKENIZERS, *c.TEMPLATES),
        ),
        ("Checkpoints: values", "While weights are packed, in whichever process packs them.", c.VALUES),
    ):
        section(title, lead, ((case.how, "exit 1", case.refusal) for case in cases))
    section(
        "Command lines and configuration files",
        "The code is the process's exit code.",
        ((case.how, f"exit {case.code}", case.refusal) for case in commands.CASES),
    )
    for title, lead, calls in (
        ("Generation", "Calls of `colibri.v1.Generation`.", requests.GENERATION),
        ("Router", "Calls of `colibri.v1.Router`; `Forward` and `Gate` alike.", requests.ROUTER),
        (
            "Workers: control calls",
            "Handshake, Load, Retire and Attach of `colibri.v1.Expert`.",
            requests.workers_control(ANY, ANY),
        ),
    ):
        shown = (case for case in calls if not case.id.startswith("gate-"))
        section(title, lead, ((case.how, _status(case.refusal), case.refusal) for case in shown))
    section(
        "Workers: frames",
        "Messages of `Exchange`. The answer is the kind of the worker's frame, or the status that ends the stream.",
        ((case.how, _kind(case.answer) or _status(case.refusal), case.refusal) for case in fr.CASES),
    )
    return "".join(parts)


def _status(refusal: Refusal) -> str:
    return refusal.code.name


def _kind(number: int | None) -> str:
    if number is None:
        return ""
    names = expert_pb2.FrameKind.DESCRIPTOR.values_by_number
    return names[number].name.removeprefix("FRAME_KIND_")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", "\\n")


def _code(text: str) -> str:
    """As code in a cell."""
    fenced = f"`` {text} ``" if "`" in text else f"`{text}`"
    return fenced.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
