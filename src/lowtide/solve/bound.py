"""How fast can any program within the budget be at best? A lower bound that holds for every order and every choice.

Everything that is certainly made costs at least the fastest way to make it once (`solve/needs.py`). On top of that comes what
memory forces to be made again. Pick a captured op b of the last segment. When b first runs, everything that b depends on has
been made; of that, what ops depending on b must still read is either there while b runs, or is made again later, which costs
at least the seconds of its cheapest maker. What fits beside b's own inputs, outputs and workspace is a knapsack; its
fractional relaxation is a lower bound on the extra seconds, and the best over all b counts.

`tighter_bound` asks more of fewer moments: what is made must be made from something, by one of its makers (`solve/relaxation.py`).
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.gaps import pack
from lowtide.solve.needs import Needs
from lowtide.solve.problem import Problem
from lowtide.solve.relaxation import Relaxation

__all__ = ["lower_bound", "tighter_bound"]

_MOMENTS = 200
"""Ops tried as b: enough to find the tight ones, few enough for 50,000 ops."""
_LARGEST = 6000
"""Storages up to which a linear program is worth its time."""
_SPREAD = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Of the last segment's ops, to look at in any case."""
_TRIES = 12
"""Moments, the most promising first."""


def lower_bound(problem: Problem, limit: int) -> float:
    needs = Needs(problem)
    return needs.seconds + max(_Moments(problem, needs, limit).extras.values(), default=0.0)


def tighter_bound(problem: Problem, limit: int, seconds: float) -> float:
    """The same by linear programs, in at most about so many seconds."""
    until = time.perf_counter() + seconds
    needs = Needs(problem)
    moments = _Moments(problem, needs, limit)
    best = needs.seconds + max(moments.extras.values(), default=0.0)
    if len(problem.storage_names) > _LARGEST:
        return best
    relaxation = Relaxation(problem, needs)
    best = max(best, relaxation.once(until - time.perf_counter()))
    for position in moments.worth_a_look():
        left = until - time.perf_counter()
        if left <= 0:
            break
        best = max(best, relaxation.within(position, moments.room, left))
    return best


class _Moments:
    """The knapsack at each moment that is tried."""

    def __init__(self, problem: Problem, needs: Needs, limit: int) -> None:
        self.problem, self.needs = problem, needs
        self.room = limit - problem.base_bytes
        self.extras: dict[int, float] = {}
        """By position."""
        last = int(problem.segment.max()) if len(problem.segment) else 0
        backward = np.flatnonzero(problem.segment == last)
        if last == 0 or not len(backward):
            return
        self.cheapest = self._cheapest(last)
        several = [
            made for op in range(len(problem.op_names)) if len(made := problem.makes[op]) > 1
        ]
        self.together = pack([made[needs.certain[made]].tolist() for made in several])
        """What ops make besides each other, of what is certainly made."""
        for position in backward[:: max(1, len(backward) // _MOMENTS)].tolist():
            if len(problem.makes[problem.order[position]]):
                self.extras[position] = self._least_extra(position)

    def worth_a_look(self) -> list[int]:
        """The tightest moments first; then some of the whole segment, as what rules offer may make others tight."""
        tight = sorted((p for p in self.extras if self.extras[p]), key=lambda p: -self.extras[p])
        makes, order = self.problem.makes, self.problem.order
        every = [p for p in sorted(self.extras) if self.needs.certain[makes[order[p]]].any()]
        spread = [every[int(share * (len(every) - 1))] for share in _SPREAD if every]
        return list(dict.fromkeys([*tight[:2], *spread, *tight[2:]]))[:_TRIES]

    def _cheapest(self, last: int) -> NDArray[np.float64]:
        """The least seconds to make each storage again in the last segment, shared among what is made together."""
        problem = self.problem
        cheapest = np.full(len(problem.storage_names), np.inf)
        for op, name in enumerate(problem.op_names):
            if problem.again[op, last] or problem.graph.op[name].segment == last:
                made = problem.makes[op]
                cheapest[made] = np.minimum(cheapest[made], problem.seconds[op] / max(1, len(made)))
        return cheapest

    def _least_extra(self, position: int) -> float:
        """Fractional knapsack at the moment this captured op first runs."""
        problem, needs = self.problem, self.needs
        op = int(problem.order[position])
        before = needs.made_before(position)
        needed = needs.read_for(needs.dependent(position)) & before
        needed[problem.reads[op]] = False
        needed[problem.makes[op]] = False
        wanted = np.flatnonzero(needed & (problem.bytes > 0))
        excess = int(problem.bytes[wanted].sum()) - (self.room - needs.least_beside(op))
        if excess <= 0:
            return 0.0
        cheapest = self.cheapest.copy()
        for row in range(len(self.together.start) - 1):
            # What makes it again may be the first to make what is made with it: then that is no extra.
            made = self.together[row]
            if not before[made].all():
                cheapest[made] = 0.0
        size, cost = problem.bytes[wanted].astype(np.float64), cheapest[wanted]
        usable = np.isfinite(cost)
        order = np.argsort(cost[usable] / size[usable])
        size, cost = size[usable][order], cost[usable][order]
        freed = np.cumsum(size)
        full = int(np.searchsorted(freed, excess))
        if full >= len(size):
            return float(cost.sum())
        whole = float(freed[full - 1]) if full else 0.0
        return float(cost[:full].sum() + cost[full] * (excess - whole) / size[full])
