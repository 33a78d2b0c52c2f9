"""Whether work leaves something behind, told from what a process keeps for the most it ever had in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def assert_flat(
    work: Callable[[], object],
    measured: Callable[[], Mapping[str, int]],
    bounds: Mapping[str, int],
    rounds: int = 4,
) -> None:
    """Does `work` until each measure grew by no more than its bound in one round; fails after `rounds`.

    Arenas, pools and heaps grow with the most that was ever in flight, by chance late, and then stay: a
    round without growth follows. A leak grows in every round, so each round must be worth more than its bound
    when everything it does leaks. A key of `measured` that `bounds` lacks has the bound of its first word:
    `rss 4711` that of `rss`.
    """
    grown: dict[str, list[int]] = {}
    before = measured()
    for _ in range(rounds):
        work()
        after = measured()
        assert after.keys() == before.keys(), "the processes are no longer the same"
        for name, value in after.items():
            grown.setdefault(name, []).append(value - before[name])
        before = after
        leaking = {name: each for name, each in grown.items() if min(each) > _bound(name, bounds)}
        if not leaking:
            return
    raise AssertionError(f"grew in each of {rounds} rounds: {leaking}, at most {dict(bounds)} in one")


def _bound(name: str, bounds: Mapping[str, int]) -> int:
    return bounds[name if name in bounds else name.split()[0]]
