"""What to tell someone whose budget cannot be met: the floor, what it is made of, and ways out with numbers."""

from __future__ import annotations

from lowtide.errors import BudgetError
from lowtide.ir.graph import Graph, Kind
from lowtide.ir.program import Program
from lowtide.sim.memory import Timeline, simulate
from lowtide.units import format_bytes

__all__ = ["budget_error", "floor_parts", "or_rounded"]

_HELD: dict[str, str] = {
    Kind.GRADIENT: "gradients",
    Kind.BATCH: "batch",
    Kind.OTHER: "what else is held, by other graphs or the caller",
}


def floor_parts(timeline: Timeline) -> dict[str, int]:
    """The bytes at the peak of the smallest program, in parts that a person can act on."""
    graph = timeline.graph
    parts = {"parameters, buffers and optimizer state": 0, "batch": 0, "gradients": 0}
    owned = [graph.value[graph.storage(o.value)] for o in graph.outside if o.owned]
    for value in {v.name: v for v in owned}.values():
        parts[
            "batch" if value.kind is Kind.BATCH else "parameters, buffers and optimizer state"
        ] += value.bytes
    for kind, size in graph.held.items():
        key = _HELD.get(kind, "parameters, buffers and optimizer state")
        parts[key] = parts.get(key, 0) + size
    if not timeline.moments:
        return parts
    moment = timeline.moments[timeline.peak_moment]
    op = graph.op[moment.op]
    own = {graph.storage(v) for v in (*op.inputs, *op.outputs)}
    working = kept = 0
    for storage, size in timeline.alive(timeline.peak_moment).items():
        if graph.value[storage].kind is Kind.GRADIENT and storage not in own:
            parts["gradients"] += size
        elif storage in own:
            working += size
        else:
            kept += size
    where = f" ({op.layer})" if op.layer else ""
    parts[f"inputs, outputs and workspace of {op.target}{where}"] = working + op.workspace
    parts["other tensors that must exist then"] = kept
    return {name: size for name, size in parts.items() if size}


def budget_error(
    graph: Graph, smallest: Program, budget: int, unplanned_peak: int, needed: int
) -> BudgetError:
    """`needed`: the least budget that leaves the smallest program its peak."""
    timeline = simulate(graph, smallest)
    floor = timeline.peak
    parts = " + ".join(
        f"{name} {format_bytes(size)}" for name, size in floor_parts(timeline).items()
    )
    movable = floor - timeline.base
    room = budget - timeline.base
    ways = [
        f'budget="{_rounded(needed)}" (the smallest feasible, ~{100 * floor / unplanned_peak:.0f}% of the unplanned peak)'
    ]
    if room > 0 and movable > 0:
        ways.append(f"a batch of at most ~{100 * room / movable:.0f}% of this one")
    else:
        ways.append(
            f"a smaller model: parameters, state and batch alone take {format_bytes(timeline.base)}, more than the budget"
        )
    return BudgetError(
        f"budget too small: {format_bytes(budget)} asked, {format_bytes(floor)} is the least any plan was found for "
        f"(unplanned: {format_bytes(unplanned_peak)})\n"
        f"     floor = {parts}\n"
        f"     try   {' | '.join(ways)}\n"
        f"     more  lowtide explain F012",
        floor=floor,
    )


def or_rounded(error: BudgetError, floor: int, overhead: float | None) -> BudgetError:
    """The same refusal with what other rounding would reach: its floor, or the step time if the budget fits."""
    if overhead is not None:
        reached = f"fits this budget, step time ~{overhead:+.0%}"
    elif floor < error.floor:
        reached = f"reaches {format_bytes(floor)}"
    else:
        return error
    head, mark, rest = str(error).removeprefix(f"{error.code} ").partition("\n     more ")
    line = (
        f'\n     or    allow=("rounding",) {reached}: the same mathematics, added in another order'
    )
    return BudgetError(f"{head}{line}{mark}{rest}", floor=error.floor)


def _rounded(size: int) -> str:
    """A budget string just above a size."""
    return f"{-(-size * 100 // 2**20) / 100:.2f}MiB"
