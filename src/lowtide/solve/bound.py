"""How fast can any program within the budget be at best? A lower bound that holds for every order and every choice.

Pick a captured op b of the last segment. When b first runs, nothing that depends on b has run. So every storage made before
the last segment that some op depending on b must read is either there while b runs, or will be made again later, which costs
at least the seconds of its cheapest maker. What fits beside b's own inputs, outputs and workspace is a knapsack; its
fractional relaxation is a lower bound on the extra seconds, and the best bound over all b counts.

Each captured op must run at least once (something needs it, else it would not be there), hence the base: their seconds, each
in its fastest way. Where b can run in several ways, it is the leanest op among them that everything else must fit beside.
"""

from __future__ import annotations

import numpy as np

from lowtide.solve.compiled import compiled
from lowtide.solve.problem import Problem
from lowtide.solve.rollout import arrays

__all__ = ["lower_bound"]

_MOMENTS = 200
"""Ops tried as b: enough to find the tight ones, few enough for 50,000 ops."""


def lower_bound(problem: Problem, limit: int, base: float) -> float:
    """`base`: seconds of the captured ops that something needs."""
    base -= _saved_by_faster_ways(problem)
    last = int(problem.segment.max()) if len(problem.segment) else 0
    backward = np.flatnonzero(problem.segment == last)
    if last == 0 or not len(backward):
        return base
    room = limit - problem.base_bytes
    items = _Items(problem, last)
    extra = 0.0
    for index in range(0, len(backward), max(1, len(backward) // _MOMENTS)):
        extra = max(extra, items.least_extra(int(backward[index]), room))
    return base + extra


def _saved_by_faster_ways(problem: Problem) -> float:
    saved = 0.0
    for op in problem.order.tolist():
        ways = problem.ways[op]
        if len(ways) > 1:
            fastest = min(float(problem.seconds[problem.parts[w]].sum()) for w in ways.tolist())
            saved += max(0.0, float(problem.seconds[op]) - fastest)
    return saved


class _Items:
    """Storages of earlier segments that the last one reads, and the cheapest way to have each made again."""

    def __init__(self, problem: Problem, last: int) -> None:
        self.problem = problem
        count = len(problem.storage_names)
        self.last = last
        made_before = np.zeros(count, np.bool_)
        for position in np.flatnonzero(problem.segment < last):
            made_before[problem.makes[problem.order[position]]] = True
        self.made_before = made_before
        self.cheapest = np.full(count, np.inf)
        for storage in np.flatnonzero(made_before).tolist():
            for maker in problem.makers[storage]:
                if problem.again[maker, last]:
                    shared = max(1, len(problem.makes[maker]))
                    self.cheapest[storage] = min(
                        self.cheapest[storage], problem.seconds[maker] / shared
                    )
        self.arrays = arrays(problem)
        self.tainted = np.zeros(count, np.bool_)
        self.read = np.zeros(count, np.bool_)

    def least_extra(self, position: int, room: int) -> float:
        """Fractional knapsack at the moment this captured op runs."""
        problem = self.problem
        op = problem.order[position]
        _read_after(self.arrays, position, self.tainted, self.read)
        needed = self.read & ~self.tainted
        needed[problem.reads[op]] = False
        needed[problem.makes[op]] = False
        free = room - self.least_beside(op)
        wanted = np.flatnonzero(needed & self.made_before & (problem.bytes > 0))
        excess = int(problem.bytes[wanted].sum()) - free
        if excess <= 0:
            return 0.0
        size, cost = problem.bytes[wanted].astype(np.float64), self.cheapest[wanted]
        usable = np.isfinite(cost)
        order = np.argsort(cost[usable] / size[usable])
        size, cost = size[usable][order], cost[usable][order]
        freed = np.cumsum(size)
        full = int(np.searchsorted(freed, excess))
        if full >= len(size):
            return float(cost.sum())
        before = float(freed[full - 1]) if full else 0.0
        return float(cost[:full].sum() + cost[full] * (excess - before) / size[full])

    def least_beside(self, op: int) -> int:
        """The fewest bytes in use while anything runs that makes some of this op's outputs."""
        problem = self.problem
        found = []
        for way in problem.ways[op].tolist():
            for part in problem.parts[way].tolist():
                own = np.unique(np.concatenate([problem.reads[part], problem.makes[part]]))
                found.append(int(problem.bytes[own].sum()) + int(problem.workspace[part]))
        return min(found)


@compiled
def _read_after(a, position, tainted, read):  # type: ignore[no-untyped-def]
    """Which storages do captured ops read that depend on the op at `position`? Fills `read`."""
    tainted[:] = False
    read[:] = False
    op = a.order[position]
    for i in range(a.makes0[op], a.makes0[op + 1]):
        tainted[a.makes[i]] = True
    for later in range(position + 1, a.order.shape[0]):
        op = a.order[later]
        depends = False
        for i in range(a.reads0[op], a.reads0[op + 1]):
            if tainted[a.reads[i]]:
                depends = True
                break
        # The return reads every gradient: it depends on all, and reads nothing of a first segment.
        if depends and not (a.effect[op] and a.makes0[op] == a.makes0[op + 1]):
            for i in range(a.reads0[op], a.reads0[op + 1]):
                read[a.reads[i]] = True
            for i in range(a.makes0[op], a.makes0[op + 1]):
                tainted[a.makes[i]] = True
