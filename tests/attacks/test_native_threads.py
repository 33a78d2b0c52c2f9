"""Native code under many threads: results as on one, no record lost, none twice.

`make sanitize MODE=thread` runs these over modules that report races.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support import native_threads
from tests.support.tries import Tries

WORKS = {
    "kernels": native_threads.kernels,
    "rings": native_threads.rings,
    "codec": native_threads.codec,
}
SHORT_S, LONG_S = 1.0, 120.0


@pytest.fixture
def hasty() -> Iterator[None]:
    """Python changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("work", WORKS.values(), ids=list(WORKS))
def test_many_threads(work: Callable[[float], int], tries: Tries) -> None:
    done = work(SHORT_S)
    tries("calls of native code from many threads", done)


@pytest.mark.attacks
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("work", WORKS.values(), ids=list(WORKS))
def test_many_threads_for_long(work: Callable[[float], int], tries: Tries) -> None:
    tries("calls of native code from many threads", work(LONG_S))
