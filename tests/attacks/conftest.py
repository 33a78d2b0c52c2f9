"""Attacks: each test says how often it tried what, and the run ends with the sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.reference import ReferenceBackend
from tests.support.pki import Pki
from tests.support.tiny_engine import TinyModel, make_tiny
from tests.support.tries import PREFIX, Tries, total

#: Bound of a long form, seconds.
_LONG_S = 3600


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> Tries:
    """`tries("oversized tensors", 12)` records twelve tries; call it after they were made."""

    def record(name: str, count: int) -> None:
        if count < 1:
            raise ValueError(f"tries of {name}: expected at least 1, got {count}")
        request.node.user_properties.append((f"{PREFIX}{name}", count))

    return record


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long forms have the time that they need."""
    for item in items:
        if item.get_closest_marker("attacks") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call"
    ]
    sums: Counter[str] = sum((total(report.user_properties) for report in reports), Counter())
    if sums:
        terminalreporter.section("attacks tried")
        for name, count in sorted(sums.items()):
            terminalreporter.write_line(f"{count:8,}  {name}")
        terminalreporter.write_line(f"{sums.total():8,}  together")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.make(tmp_path_factory.mktemp("pki") / "certs")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    folder = make_tiny(tmp_path_factory.mktemp("tiny") / "model")
    opened = TinyModel.open(folder, ReferenceBackend(), ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
