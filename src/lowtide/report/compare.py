"""What do the planner and the known methods reach along the whole curve of memory and time?

Computed when a report is made, on request: a frontier takes seconds, and the quick baselines a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lowtide.errors import LowtideError
from lowtide.ir.graph import Graph
from lowtide.plan.frontier import Frontier
from lowtide.plan.plan import Plan
from lowtide.report.curve import Curve, Spot
from lowtide.sim.memory import simulate
from lowtide.solve.baselines import QUICK_BASELINES

__all__ = ["curve_of"]

_NAMES = {"keep all": "no plan", "torch knapsack": "torch's knapsack", "chen": "Chen's sqrt(n)", "echo": "Echo"}  # fmt: skip


def curve_of(frontier: Frontier, source: Graph | Plan) -> Curve:
    """`source` is what the frontier was made from."""
    plans = tuple(frontier)
    graph = plans[-1].graph
    plan = source if isinstance(source, Plan) else None
    return Curve(
        line=tuple(_front((p.peak, p.seconds) for p in (*plans, *([plan] if plan else [])))),
        baselines=tuple(_baselines(graph, plan.budget if plan else plans[len(plans) // 2].budget)),
        chosen=Spot("this plan", plan.peak, plan.seconds) if plan else None,
        budget=plan.budget if plan else None,
        seconds=plans[-1].unplanned_seconds,
    )


def _front(points: Iterable[tuple[int, float]]) -> Iterator[Spot]:
    """Those than which none has less memory and less time."""
    fastest = float("inf")
    for peak, seconds in sorted(points):
        if seconds < fastest:
            yield Spot("", peak, seconds)
            fastest = seconds


def _baselines(graph: Graph, budget: int) -> Iterator[Spot]:
    for name, method in QUICK_BASELINES.items():
        try:
            timeline = simulate(graph, method(graph, budget))
        except LowtideError:  # a method that has no answer for this graph is not shown
            continue
        yield Spot(_NAMES.get(name, name), timeline.peak, timeline.seconds)
