"""Three real hosts, where this machine lets them be made."""

from __future__ import annotations

import pytest

from tests.support.hosts.needs import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("rayup") is not None]
    if marked and (reason := why_not()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
