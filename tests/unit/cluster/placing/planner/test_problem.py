"""What cannot be planned is refused with what is needed and what there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from colibri.cluster.placing.planner.plan import first_plan, plan
from colibri.cluster.placing.planner.problem import Problem, Worker
from colibri.errors import ColibriError

W = (Worker("a", "h0"), Worker("b", "h0"), Worker("c", "h1"))
H = ((("a",), ("c",)),)
NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Problem((), H), "workers: expected at least one, got none"),
        (lambda: Problem((*W, Worker("a")), H), "workers: expected names that differ, got a twice"),
        (
            lambda: Problem((Worker("a", speed=0.0),), H),
            "workers: a: speed: expected a finite number above 0",
        ),
        (lambda: Problem((Worker("a", memory=-1),), H), "workers: a: memory: expected bytes, not negative"),
        (lambda: Problem(W, ()), "holders: expected at least one layer of experts"),
        (lambda: Problem(W, (*H, (("a",),))), r"holders\[1\]: expected 2 experts, got 1"),
        (lambda: Problem(W, H, 0), "replicas: expected at least 1, got 0"),
        (lambda: Problem(W, H, 3), r"replicas: expected at most 2 \(the number of hosts\), got 3"),
        (
            lambda: Problem((Worker("a"), Worker("b")), H, 3),
            r"replicas: expected at most 2 \(the number of workers\), got 3",
        ),
        (lambda: Problem(W, H, loads=((1.0, 2.0), (1.0, 2.0))), "loads: expected 1 layers, got 2"),
        (lambda: Problem(W, H, loads=((1.0,),)), r"loads\[0\]: expected 2 experts, got 1"),
        (
            lambda: Problem(W, H, loads=((1.0, NAN),)),
            r"loads\[0\]: expected finite numbers, none negative, got nan",
        ),
        (
            lambda: Problem(W, H, loads=((1.0, -1.0),)),
            r"loads\[0\]: expected finite numbers, none negative, got -1",
        ),
        (lambda: Problem(W, H, goal=0.9), "goal: expected at least 1, got 0.9"),
        (lambda: Problem(W, H, cost_per_byte=NAN), "cost_per_byte: expected at least 0, got nan"),
        (
            lambda: Problem(W, H, pinned=frozenset({(1, 0)})),
            r"pinned: expected experts of 1 layers of 2, got \(1, 0\)",
        ),
        (
            lambda: Problem(tuple(Worker(n, memory=19) for n in "ab"), H, 2, None, 10),
            r"memory: 2 copies of 2 experts of 10 bytes need room for 4 \(40 bytes\), and the workers have room for 2 "
            r"\(20 bytes; copies of an expert are on different hosts\)",
        ),
        # Room for four, but a host holds an expert once.
        (
            lambda: Problem((Worker("a", "h", memory=40), Worker("b", "i", memory=10)), H, 2, None, 10),
            "need room for 4 .40 bytes., and the workers have room for 3",
        ),
        (lambda: first_plan(1, 2, [], 1), "workers: expected at least one, got none"),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ColibriError, match=message):
        make()


def test_pinned_experts_that_leave_no_room() -> None:
    """a and b have two each; both of b are taken by hand."""
    workers = (Worker("a", memory=20), Worker("b", memory=20))
    holders = ((("b",), ("b",), ("a",)),)
    problem = Problem(workers, holders, 1, None, 10, frozenset({(0, 0), (0, 1)}))
    assert plan(problem).holders == holders
    two = Problem(
        (Worker("a", memory=30), Worker("b", memory=30)), ((("b",), ("b",), ("a",)),), 2, None, 10,
        frozenset({(0, 0), (0, 1)}),
    )  # fmt: skip
    assert plan(two).holders == ((("b",), ("b",), ("a", "b")),)
