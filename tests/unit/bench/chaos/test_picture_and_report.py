"""Runs told to people, machines and eyes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

from colibri.bench.chaos.picture import draw
from colibri.bench.chaos.plan import Action, Limits
from colibri.bench.chaos.report import document, lines
from colibri.bench.chaos.timeline import MomentKind
from colibri.bench.chaos.verdict import judge
from tests.unit.bench.chaos.results import GOOD, moment, record, result, steady

SVG = "{http://www.w3.org/2000/svg}"
RESULT = result(
    [steady(0, 0.5, 29.0, 0.02), record(1, [12.0, 12.3])],
    Limits(gap_over_quiet_s=0.15),
    moments=(
        moment(0.0, MomentKind.PHASE, "quiet", ""),
        moment(12.0, MomentKind.EVENT, "kill", "w<1>", 0),
        moment(12.1, MomentKind.SEEN, "waiting", "w<1>"),
        moment(14.0, MomentKind.SEEN, "serving", "w<1>"),
        moment(16.0, MomentKind.EVENT, "stop", "w2", 1),
        moment(17.0, MomentKind.UNDO, "stop", "w2", 1),
    ),
    injected={Action.CORRUPT: 4},
)


def test_the_picture_is_well_formed_and_shows_each_thing() -> None:
    root = ElementTree.fromstring(draw(RESULT, judge(RESULT, GOOD), "kills & stops"))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert "kills & stops" in texts
    assert {"w<1>", "w2", "quiet"} <= set(texts)
    assert any(text is not None and text.startswith("limit 170 ms") for text in texts)
    assert {"kill w<1>", "stop w2", "w<1> does not serve"} <= set(titles)
    width = float(root.attrib["width"])
    for box in root.iter(f"{SVG}rect"):
        assert 0 <= float(box.attrib.get("x", 0)) <= width


def test_the_text_says_what_went_wrong() -> None:
    text = "\n".join(lines(RESULT, judge(RESULT, GOOD)))
    assert "seed       1; 2 events: 2 kill" in text
    assert "4 corrupt" in text
    assert "300 ms after kill w<1>" in text
    assert "failovers 2" in text
    assert text.endswith("verdict    not passed")


def test_the_document_is_json_with_every_figure() -> None:
    verdict = judge(RESULT, GOOD)
    found = json.loads(json.dumps(document(RESULT, verdict)))
    assert found["passed"] is False
    assert found["chaos"]["largest_s"] == verdict.chaos.largest_s
    assert [event["what"] for event in found["after_events"]] == ["kill w<1>", "stop w2"]
    assert len(found["timeline"]) == 6
