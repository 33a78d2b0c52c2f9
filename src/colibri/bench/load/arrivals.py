"""Decide when requests are sent.

Open loop: at times drawn up front, whatever the server does. Closed loop: N users, each of whom asks again as soon
as the answer came; for capacity, since it waits with a server that stalls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from colibri.errors import ConfigError

#: More arrivals than this in one run are a slip.
MAX_REQUESTS = 10_000_000
_BATCH = 256


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """offsets: seconds after the start of the run, ascending."""

    offsets: tuple[float, ...]

    def __post_init__(self) -> None:
        before = 0.0
        for offset in self.offsets:
            if not before <= offset < math.inf:
                raise ConfigError("arrivals", f"ascending finite times from {before}", offset)
            before = offset


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Users ask one after another until `requests` have been started, `duration_s` is over or the run is stopped.

    think_s: a user's pause after each answer, seconds.
    """

    users: int
    requests: int | None = None
    duration_s: float | None = None
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ConfigError("users", "at least 1", self.users)
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise ConfigError("requests", f"1 to {MAX_REQUESTS}", self.requests)
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ConfigError("duration", "a positive number of seconds", self.duration_s)
        if not 0 <= self.think_s < math.inf:
            raise ConfigError("think time", "0 or more seconds", self.think_s)


Arrivals = OpenLoop | ClosedLoop


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Yields endless arrival times with gamma-distributed gaps of mean 1 / rate seconds.

    burstiness: the gamma's shape, as in `vllm bench serve`: 1 is Poisson; below 1 arrivals come in bursts, above 1
        more evenly.
    rate: requests per second; inf: all at once.
    """
    if not rate > 0:
        raise ConfigError("rate", "requests per second above 0, or inf", rate)
    if not 0 < burstiness < math.inf:
        raise ConfigError("burstiness", "a finite number above 0", burstiness)
    if math.isinf(rate):
        yield from itertools.repeat(0.0)
    rng = np.random.default_rng([seed, 0x6172])  # not the streams of the workload's requests
    at = 0.0
    while True:
        for gap in rng.gamma(burstiness, 1.0 / (rate * burstiness), _BATCH).tolist():
            at += gap
            yield at


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Yields endless arrival times of a Poisson process of `rate` requests per second."""
    return gamma(rate, 1.0, seed)


def limited(offsets: Iterable[float], requests: int | None, duration_s: float | None) -> OpenLoop:
    """Returns the first arrivals: at most `requests`, and none at or after `duration_s`. One of the two must
    be given.
    """
    if requests is None and duration_s is None:
        raise ConfigError("arrivals", "a number of requests or a duration", "neither")
    most = MAX_REQUESTS if requests is None else requests
    if not 1 <= most <= MAX_REQUESTS:
        raise ConfigError("requests", f"1 to {MAX_REQUESTS}", most)
    until = math.inf if duration_s is None else duration_s
    chosen = tuple(itertools.takewhile(lambda at: at < until, itertools.islice(offsets, most)))
    if not chosen:
        raise ConfigError("arrivals", f"at least one within {until:g} s", "none")
    return OpenLoop(chosen)
