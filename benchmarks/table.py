"""A Reach table: lines that are measured, compared with a target, printed and written as JSON."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """value: what was measured, as text; met: against the target; limit: the limit or peer of the same run.
    waived: why it could not be measured here; it counts as met, and the table says so."""

    value: str
    met: bool
    limit: str = ""
    detail: dict[str, object] | None = None
    waived: str = ""

    @property
    def word(self) -> str:
        return f"waived: {self.waived}" if self.waived else "met" if self.met else "NOT MET"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a Reach table; `measure` may take minutes and may raise (which counts as not met)."""

    id: str
    what: str
    target: str
    measure: Callable[[], Outcome]


def run_table(topic: str, lines: Sequence[Line], json_file: Path | None) -> int:
    """Measures every line in turn, prints each as it is known, then the table. Returns the exit code."""
    rows: list[dict[str, object]] = []
    for line in lines:
        print(f"-- {line.id}: {line.what}", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            outcome = line.measure()
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(f"not measured: {type(error).__name__}: {error}", False)
        row = {"id": line.id, "what": line.what, "target": line.target} | asdict(outcome)
        row["seconds"] = round(time.monotonic() - start, 1)
        rows.append(row)
        print(f"   {outcome.value} ({outcome.word}, {row['seconds']} s)", file=sys.stderr)
        if json_file is not None:
            json_file.write_text(json.dumps({"topic": topic, "lines": rows}, indent=1) + "\n")
    print(render(rows))
    missed = [str(row["id"]) for row in rows if not row["met"]]
    waived = sum(bool(row["waived"]) for row in rows)
    print(
        f"{len(rows) - len(missed)} of {len(rows)} met"
        + (f", of which {waived} waived" if waived else "")
        + (f"; not met: {', '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


def render(rows: Sequence[dict[str, object]]) -> str:
    """A Markdown table, so that it can be pasted into docs/benchmarks.md as it is."""
    head = ("id", "value", "target", "limit", "met")
    out = ["| id | value | target | limit or peer | met |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        word = f"waived: {row['waived']}" if row.get("waived") else "yes" if row["met"] else "NO"
        cells = [*(str(row[key]) for key in head[:-1]), word]
        out.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(out)
