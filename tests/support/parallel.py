"""The scheduler of `make test` (pytest-xdist): it keeps scopes together."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.support.scopes import scope_of


class ByScope(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
