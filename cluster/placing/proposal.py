"""Plan a placement anew for measured loads, and say what it would gain. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colibri.cluster.experts.holders import Holders, as_placement, copies
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.outcome import Balance, Move, balance_of, moves
from colibri.cluster.placing.planner.plan import plan
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.rebalance_options import PlacementPolicy
from colibri.placement import Placement


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed placement.

    desired: with the new placement.
    before, after: balance under the loads.
    loads, drops: copies of experts.
    nbytes: to be loaded.
    """

    desired: Desired
    before: Balance
    after: Balance
    loads: tuple[Move, ...]
    drops: tuple[Move, ...]
    nbytes: int

    @property
    def gain(self) -> float:
        """The share that is saved of the time in which a step waits for experts."""
        return 1.0 - self.after.slowdown / self.before.slowdown


def propose(desired: Desired, current: Placement, loads: Loads, policy: PlacementPolicy) -> Proposal:
    """Plans anew. Raises as planning does. current: the placement in force."""
    new = placed(desired, loads, policy)
    holders = desired.holders
    gained, lost = moves(holders, new.holders)
    after = _as_planned(new, new.holders)
    return Proposal(
        new,
        balance_of(current, loads),
        balance_of(after, loads),
        gained,
        lost,
        len(gained) * desired.expert_bytes,
    )


def placed(desired: Desired, loads: Loads, policy: PlacementPolicy) -> Desired:
    """Returns the same workers with a placement for these loads."""
    problem = replace(desired.problem(desired.workers), loads=loads)
    total = sum(map(sum, loads)) / sum(worker.speed for worker in problem.workers)
    nbytes = problem.layers * problem.experts * problem.expert_bytes
    cost = policy.move_cost * total / nbytes
    planned = plan(replace(problem, trigger=policy.trigger, cost_per_byte=cost))
    return replace(desired, holders=planned.holders, loads=planned.loads)


def _as_planned(desired: Desired, holders: Holders) -> Placement:
    order = tuple(dict.fromkeys((*desired.workers, *copies(holders))))
    return as_placement(holders, order, 1, desired.loads, desired.speeds(order))
