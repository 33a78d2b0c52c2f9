"""The log of a service: time, level, component and message, as text or as JSON."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping

import pytest

from colibri.cli.service_log import ServiceFormatter, Style, utc

SPEAKS = """
import logging, sys
from colibri.cli.service_log import Style, start_log
log = start_log("serve", Style(sys.argv[1]))
log("router: worker w0 is in use again")
log("ready")
log("worker w1: put right: a\\x1b[2Jb\\u202e")
logging.getLogger("colibri.rpc.guard").warning("told as %r", "x")
logging.getLogger("colibri.security.tokens").info("read again")
logging.getLogger("asyncio").info("not ours, not worth a line")
logging.getLogger("colibri.coordinator.engine").error("a step failed", extra={"request_id": "r1"})
"""


def lines(style: Style) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS, style.value], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_text_has_time_level_and_component() -> None:
    found = [line.split(" ", 1) for line in lines(Style.TEXT)]
    assert all(len(when) == len("2026-12-01T16:20:01.123Z") and when.endswith("Z") for when, _ in found)
    assert [rest for _, rest in found] == [
        "INFO router: worker w0 is in use again",
        "INFO serve: ready",
        "INFO worker w1: put right: a\\x1b[2Jb\\u202e",
        "WARNING rpc.guard: told as 'x'",
        "INFO security.tokens: read again",
        "ERROR coordinator.engine: a step failed (request r1)",
    ]


def test_json_has_an_object_a_line() -> None:
    found: list[Mapping[str, str]] = [json.loads(line) for line in lines(Style.JSON)]
    assert [(each["level"], each["component"], each["message"]) for each in found] == [
        ("INFO", "router", "worker w0 is in use again"),
        ("INFO", "serve", "ready"),
        ("INFO", "worker w1", "put right: a\x1b[2Jb\u202e"),
        ("WARNING", "rpc.guard", "told as 'x'"),
        ("INFO", "security.tokens", "read again"),
        ("ERROR", "coordinator.engine", "a step failed"),
    ]
    assert [each.get("request_id") for each in found] == [None] * 5 + ["r1"]
    assert all(set(each) <= {"time", "level", "component", "message", "request_id"} for each in found)


def test_plain_has_messages_alone_and_no_news_below_a_warning() -> None:
    assert lines(Style.PLAIN) == [
        "router: worker w0 is in use again",
        "ready",
        "worker w1: put right: a\\x1b[2Jb\\u202e",
        "told as 'x'",
        "a step failed",
    ]


@pytest.mark.parametrize("style", list(Style))
def test_a_traceback_comes_along(style: Style) -> None:
    try:
        raise ValueError("no such thing")
    except ValueError:
        record = logging.LogRecord("colibri.rpc.door", 40, "", 0, "unexpected", None, sys.exc_info())
    text = ServiceFormatter("serve", style).format(record)
    told = json.loads(text)["exception"] if style is Style.JSON else text
    assert "Traceback" in told
    assert told.endswith("ValueError: no such thing")
    assert ("\n" in text) == (style is not Style.JSON)


def test_times_are_utc_with_milliseconds() -> None:
    assert utc(0.0) == "1970-01-01T00:00:00.000Z"
    assert utc(1_764_606_001.1239) == "2025-12-01T16:20:01.123Z"
