"""The log of a service on stderr: one event a line, with time, level and component, as text or as JSON.

A worker that a launcher started writes bare messages (`--log-plain`): the server's log, where they go, has the rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from enum import Enum

from colibri.cli.terminal import spelled_out

#: What a line of the deployment says first: `router: `, `worker w0: `, `placement: `.
_COMPONENT = re.compile(r"([A-Za-z][\w.-]*(?: [\w.-]+)?): ")
_OWN = "colibri."
_DEPLOYMENT = "colibri.deployment"


class Style(Enum):
    TEXT = "text"
    JSON = "json"
    PLAIN = "plain"


def add_service_log(parser: argparse.ArgumentParser) -> None:
    style = parser.add_mutually_exclusive_group()
    style.add_argument(
        "--log-json",
        action="store_true",
        help="write each line of the log as a JSON object: time, level, component, message, and request_id and "
        "exception where there is one",
    )
    style.add_argument(
        "--log-plain",
        action="store_true",
        help="write messages alone, without time and level, for whoever adds them",
    )


def style_of(args: argparse.Namespace) -> Style:
    """What `add_service_log` read."""
    return Style.JSON if args.log_json else Style.PLAIN if args.log_plain else Style.TEXT


def start_log(verb: str, style: Style) -> Callable[[str], None]:
    """Sends everything that this process logs to stderr. Returns what logs one line of the deployment.

    verb: the component of lines that name none.
    """
    handler = _Handler()
    handler.setFormatter(ServiceFormatter(verb, style))
    root = logging.getLogger()
    root.handlers = [handler]
    # Workers' lines are the log of a server, which has room for their warnings.
    logging.getLogger("colibri").setLevel(logging.WARNING if style is Style.PLAIN else logging.INFO)
    deployment = logging.getLogger(_DEPLOYMENT)
    deployment.setLevel(logging.INFO)

    def log(line: str) -> None:
        deployment.info("%s", line)

    return log


class ServiceFormatter(logging.Formatter):
    """Text: `2026-12-01T16:20:01.123Z INFO router: worker w0 is in use again`."""

    def __init__(self, verb: str, style: Style) -> None:
        super().__init__()
        self._verb = verb
        self._shape = style

    def format(self, record: logging.LogRecord) -> str:
        component, message = self._parts(record)
        trace = "" if record.exc_info is None else self.formatException(record.exc_info)
        if self._shape is Style.PLAIN:
            text = record.getMessage()
            return spelled_out(f"{text}\n{trace}" if trace else text)
        if self._shape is Style.JSON:
            fields = {"time": utc(record.created), "level": record.levelname, "component": component}
            fields["message"] = message
            request_id = getattr(record, "request_id", "")
            if request_id:
                fields["request_id"] = request_id
            if trace:
                fields["exception"] = trace
            return json.dumps(fields)
        text = f"{utc(record.created)} {record.levelname} {component}: {message}"
        request_id = getattr(record, "request_id", "")
        if request_id:
            text += f" (request {request_id})"
        return spelled_out(f"{text}\n{trace}" if trace else text)

    def _parts(self, record: logging.LogRecord) -> tuple[str, str]:
        """(component, the rest of the message)"""
        message = record.getMessage()
        if record.name != _DEPLOYMENT:
            return record.name.removeprefix(_OWN), message
        found = _COMPONENT.match(message)
        return (self._verb, message) if found is None else (found.group(1), message[found.end() :])


def utc(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds. seconds: since the epoch."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


class _Handler(logging.Handler):
    """To whatever stderr is at the time; it never waits (cli/standard_streams)."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)
