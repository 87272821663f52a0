"""How fast can any program within the budget be at best? A lower bound that holds for every order and every choice.

Pick a captured op b of the last segment. When b first runs, nothing that depends on b has run. So every storage made before
the last segment that some op depending on b must read is either there while b runs, or will be made again later, which costs
at least the seconds of its cheapest maker. What fits beside b's own inputs, outputs and workspace is a knapsack; its
fractional relaxation is a lower bound on the extra seconds, and the best bound over all b counts.

Each output that something needs is made at least once, hence the base: for each captured op the fastest set of its forms that
makes what is needed of it. Where an output can be made by several forms, it certainly depends on what they all read; and where
b has several, it is the leanest op among them that everything else must fit beside.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import Lists, pack
from lowtide.solve.problem import Problem

__all__ = ["lower_bound"]

_MOMENTS = 200
"""Ops tried as b: enough to find the tight ones, few enough for 50,000 ops."""


def lower_bound(problem: Problem, limit: int) -> float:
    needs = _Needs(problem)
    last = int(problem.segment.max()) if len(problem.segment) else 0
    backward = np.flatnonzero(problem.segment == last)
    if last == 0 or not len(backward):
        return needs.seconds
    room = limit - problem.base_bytes
    items = _Items(problem, needs, last)
    extra = 0.0
    for index in range(0, len(backward), max(1, len(backward) // _MOMENTS)):
        extra = max(extra, items.least_extra(int(backward[index]), room))
    return needs.seconds + extra


class _Needs:
    """What is certainly made, from what, and how fast at best. Found backwards from what the caller gets."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.forms = _forms(problem)
        self.certain = problem.finished.copy()
        self.captured = np.zeros(len(problem.storage_names), np.bool_)
        self.captured[problem.gaps.storage] = True
        self.seconds = 0.0
        rows: list[tuple[int, int, list[int]]] = []
        for position in range(len(problem.order) - 1, -1, -1):
            rows += self.visit(position, int(problem.order[position]))
        rows.reverse()
        self.position = np.array([r[0] for r in rows], np.int64)
        """Of each certain output, in captured order: the position of its captured op, ..."""
        self.output = np.array([r[1] for r in rows], np.int64)
        self.reads: Lists = pack([r[2] for r in rows])
        """... and what every form that makes it reads."""

    def visit(self, position: int, op: int) -> list[tuple[int, int, list[int]]]:
        problem = self.problem
        made = [s for s in problem.makes[op].tolist() if self.certain[s] or problem.effect[op]]
        if problem.effect[op]:
            self.certain[problem.reads[op]] = True
        forms = [op] if problem.effect[op] else [op, *self.forms.get(op, ())]
        if made:
            self.seconds += _fastest(problem, forms, set(made))
        elif problem.effect[op]:
            self.seconds += float(problem.seconds[op])
        rows = []
        for output in made:
            read = [self.sources(f) for f in forms if output in problem.makes[f]]
            always = sorted(set.intersection(*read))
            self.certain[always] = True
            rows.append((position, output, always))
        return rows

    def sources(self, op: int) -> set[int]:
        """The captured storages an op needs: for a copy that only rules make, what it is made from."""
        problem = self.problem
        found: set[int] = set()
        pending = problem.reads[op].tolist()
        while pending:
            storage = pending.pop()
            makers = problem.makers[storage]
            if self.captured[storage] or len(makers) != 1:
                found.add(storage)
            else:
                pending += problem.reads[makers[0]].tolist()
        return found


def _forms(problem: Problem) -> dict[int, list[int]]:
    """For each captured op the rules' ops that make some of its outputs in its place."""
    found: dict[int, list[int]] = {}
    for number, name in enumerate(problem.op_names):
        op = problem.graph.op[name]
        if op.of and op.of in problem.op_index:
            whole = problem.op_index[op.of]
            if set(problem.makes[whole]) & set(problem.makes[number]):
                found.setdefault(whole, []).append(number)
    return found


def _fastest(problem: Problem, forms: list[int], wanted: set[int]) -> float:
    """Seconds of the fastest set of forms that makes all of these."""
    if len(forms) == 1:
        return float(problem.seconds[forms[0]])
    makes = {f: wanted & set(problem.makes[f].tolist()) for f in forms}
    return min(
        float(problem.seconds[list(chosen)].sum())
        for count in range(1, len(wanted) + 1)
        for chosen in combinations(forms, count)
        if set().union(*(makes[f] for f in chosen)) == wanted
    )


class _Items:
    """Storages of earlier segments that the last one reads, and the cheapest way to have each made again."""

    def __init__(self, problem: Problem, needs: _Needs, last: int) -> None:
        self.problem, self.needs = problem, needs
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
        self.tainted = np.zeros(count, np.bool_)
        self.read = np.zeros(count, np.bool_)

    def least_extra(self, position: int, room: int) -> float:
        """Fractional knapsack at the moment this captured op runs."""
        problem, needs = self.problem, self.needs
        op = problem.order[position]
        self.tainted[:] = False
        self.read[:] = False
        self.tainted[problem.makes[op]] = True
        first = int(np.searchsorted(needs.position, position, side="right"))
        _read_after(
            needs.output, needs.reads.start, needs.reads.items, first, self.tainted, self.read
        )
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
        for form in (op, *self.needs.forms.get(op, ())):
            own = np.unique(np.concatenate([problem.reads[form], problem.makes[form]]))
            found.append(int(problem.bytes[own].sum()) + int(problem.workspace[form]))
        return min(found)


@compiled
def _read_after(output, reads0, reads, first, tainted, read):  # type: ignore[no-untyped-def]
    """What is read to make outputs that depend on a tainted storage? Fills `read`, and taints these outputs."""
    for row in range(first, output.shape[0]):
        depends = False
        for i in range(reads0[row], reads0[row + 1]):
            if tainted[reads[i]]:
                depends = True
                break
        if depends:
            for i in range(reads0[row], reads0[row + 1]):
                read[reads[i]] = True
            tainted[output[row]] = True
