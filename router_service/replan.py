"""Plan the units that must be sent again. Pure functions.

The units of a failed dispatch become the rows of a new plan. Whichever workers hold their experts now answer for
them; a folded unit is split if no single worker holds all its experts. `splice` puts these answers where the failed
ones were in the layer's plan. A folded unit is a prefix 0..j of a row's slots, so its pieces are neighbours in slot
order, and one merge over the spliced plan adds the same terms in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from colibri.router_service.plan_small import Work, make_dispatch
from colibri.router_service.plan_types import Dispatch, LayerPlan


def replan(dispatch: Dispatch, owner: Mapping[int, int]) -> LayerPlan:
    """Plans the units of `dispatch` anew.

    owner: expert -> worker, or NOBODY: its units then wait in a dispatch to NOBODY.

    Returns a plan whose rows are the units. Its dispatches, by ascending worker, hold rows of the batch like all
    others.
    """
    batch = dispatch.batch
    experts = np.repeat(batch.group_expert, batch.group_count).tolist()
    slots_of_unit: list[list[tuple[int, int, float]]] = [[] for _ in range(len(dispatch.unit_row))]
    columns = (batch.entry_unit.tolist(), batch.entry_slot.tolist(), batch.entry_weight.tolist())
    for expert, unit, slot, weight in zip(experts, *columns, strict=True):
        slots_of_unit[unit].append((slot, expert, weight))

    work: dict[int, Work] = {}
    terms: list[tuple[int, int]] = []
    offsets = [0]
    for row, slots in zip(dispatch.unit_row.tolist(), slots_of_unit, strict=True):
        slots.sort()
        prefix = None
        for slot, expert, weight in slots:
            worker = owner[expert]
            mine = work.setdefault(worker, Work())
            if slot == 0:
                prefix = worker
            if slot > 0 and worker == prefix:
                mine.extend_unit()
            else:
                if slot > 0:
                    prefix = None
                terms.append((worker, len(mine.unit_row)))
                mine.begin_unit(row, slot)
            mine.add_entry(expert, slot, weight)
        offsets.append(len(terms))
    order = sorted(work)
    number = {worker: index for index, worker in enumerate(order)}
    return LayerPlan(
        tuple(make_dispatch(worker, work[worker]) for worker in order),
        np.array([number[worker] for worker, _ in terms], dtype=np.uint32),
        np.array([unit for _, unit in terms], dtype=np.uint32),
        np.array(offsets, dtype=np.uint32),
    )


def splice(plan: LayerPlan, replaced: Mapping[int, LayerPlan]) -> LayerPlan:
    """Returns `plan` with some of its dispatches replaced by plans over their units.

    replaced: number of a dispatch -> the plan in its place; at least one. Its dispatches stand where the replaced one
    stood, so one worker may have several.
    """
    dispatches: list[Dispatch] = []
    first = []
    for number, dispatch in enumerate(plan.dispatches):
        first.append(len(dispatches))
        dispatches.extend(replaced[number].dispatches if number in replaced else (dispatch,))
    pieces = {
        number: (sub.part.tolist(), sub.index.tolist(), sub.row_offsets.tolist())
        for number, sub in replaced.items()
    }
    part: list[int] = []
    index: list[int] = []
    ends: list[int] = [0]
    for number, unit in zip(plan.part.tolist(), plan.index.tolist(), strict=True):
        if number in pieces:
            sub_part, sub_index, sub_offsets = pieces[number]
            begin, end = sub_offsets[unit], sub_offsets[unit + 1]
            part += [first[number] + piece for piece in sub_part[begin:end]]
            index += sub_index[begin:end]
        else:
            part.append(first[number])
            index.append(unit)
        ends.append(len(part))
    return LayerPlan(
        tuple(dispatches),
        np.array(part, dtype=np.uint32),
        np.array(index, dtype=np.uint32),
        np.array(ends, dtype=np.uint32)[plan.row_offsets],
    )
