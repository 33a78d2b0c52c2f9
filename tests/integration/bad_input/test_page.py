"""docs/errors.md says what the tables say, which the other suites here compare with what happens."""

from __future__ import annotations

from tests.integration.bad_input.page import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.integration.bad_input.page"
