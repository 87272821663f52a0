"""What must any program pay? Two linear relaxations, solved by HiGHS through scipy.

*To make everything once*: whoever gets something runs one of its makers, which finds what it reads made by another. Fractions
instead of yes and no make it a linear program. An op does not count as a maker of what it is itself made from, such as a copy
back.

*After a certain moment of backward*: when a captured op b of the last segment first runs, everything it certainly depends on has been made.
Of that, each storage is there while b runs or is not; what is there must fit beside b's own inputs, outputs and workspace. What ops that
depend on b read is then either there or made again, which takes a maker's seconds; and what that maker reads must be there or be made again
in turn. Its optimum is what no program can avoid on top of making everything once.

An op that is run again counts only if all it makes had been made before: else it may be the first to make the
rest. (Several moments in one program were tried: fractions of a maker spread over the times between them, and the bound got
worse.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowtide.solve.gaps import Flags
from lowtide.solve.needs import Needs
from lowtide.solve.problem import Problem

__all__ = ["relaxed_extra", "relaxed_once"]

_SLACK = 1e-6
"""HiGHS proves optima to within its tolerances; this share of the answer is given up for them."""


class _Linear:
    """A linear program as it grows: variables between 0 and 1, rows `sum(coefficient * variable) <= limit`."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.limits: list[float] = []
        self.row: list[int] = []
        self.column: list[int] = []
        self.factor: list[float] = []

    def variable(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def add(self, terms: Sequence[tuple[int, float]], limit: float) -> None:
        self.row += [len(self.limits)] * len(terms)
        self.column += [v for v, _ in terms]
        self.factor += [f for _, f in terms]
        self.limits.append(limit)

    def least(self, seconds: float) -> float:
        """The least cost; 0.0 if HiGHS needs more than `seconds` to tell."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        if not self.limits:
            return 0.0
        shape = (len(self.limits), len(self.cost))
        done = linprog(
            np.array(self.cost),
            A_ub=csr_matrix((self.factor, (self.row, self.column)), shape=shape),
            b_ub=np.array(self.limits),
            bounds=(0.0, 1.0),
            method="highs",
            options={"time_limit": seconds},
        )
        return max(0.0, float(done.fun)) * (1 - _SLACK) if done.status == 0 else 0.0


def relaxed_once(problem: Problem, needs: Needs, seconds: float) -> float:
    """Seconds to make everything once that no program can avoid."""
    linear = _Linear()
    once = _Once(problem, needs, linear)
    for storage in np.flatnonzero(problem.finished).tolist():
        once.demand(storage)
    for op in np.flatnonzero(problem.effect[: len(problem.op_names)]).tolist():
        linear.add([(once.runs[op], -1.0)], -1.0)
        for storage in problem.reads[op].tolist():
            once.demand(storage)
    return linear.least(seconds)


class _Once:
    """The first one. One op is the first to make a storage, so of all that could be, those that need the same thing need it
    together: fractions of them do not get by with a fraction of it."""

    def __init__(self, problem: Problem, needs: Needs, linear: _Linear) -> None:
        self.linear = linear
        self.runs = [linear.variable(float(s)) for s in problem.seconds[: len(problem.op_names)]]
        arriving = set(problem.arrives.items.tolist())
        sources = [needs.sources(op) for op in range(len(self.runs))]
        first = {
            s: found
            for s, makers in enumerate(needs.makers)
            if s not in arriving and (found := [m for m in makers if s not in sources[m]])
        }
        self.made = {s: linear.variable() for s in first}
        for storage, makers in first.items():
            firsts = {m: self._makes_first(m, len(problem.makes[m])) for m in makers}
            linear.add([(self.made[storage], 1.0), *((v, -1.0) for v in firsts.values())], 0.0)
            needed: dict[int, list[int]] = {}
            for m, variable in firsts.items():
                for source in sources[m].union(problem.reads[m].tolist()):
                    needed.setdefault(source, []).append(variable)
            for source, variables in needed.items():
                if source in self.made:
                    linear.add([*((v, 1.0) for v in variables), (self.made[source], -1.0)], 0.0)

    def _makes_first(self, op: int, outputs: int) -> int:
        """ "This op is the first to make that": for an op that makes nothing else, that it runs."""
        if outputs == 1:
            return self.runs[op]
        variable = self.linear.variable()
        self.linear.add([(variable, 1.0), (self.runs[op], -1.0)], 0.0)
        return variable

    def demand(self, storage: int) -> None:
        if storage in self.made:
            self.linear.add([(self.made[storage], -1.0)], -1.0)


def relaxed_extra(
    problem: Problem, needs: Needs, position: int, room: int, seconds: float, *, whole: bool = False
) -> float:
    """Seconds beyond making everything once that no program can avoid. Everything is what is certainly made or, if `whole`, all that
    `relaxed_once` counts."""
    op = int(problem.order[position])
    before = needs.made_before(position)
    rows = _Rows(problem, needs, before, before if whole else before | ~needs.certain)
    if not rows.there:
        return 0.0
    own = {*problem.reads[op].tolist(), *problem.makes[op].tolist()}
    rows.limit_bytes(own, room - needs.least_beside(op))
    rows.need(needs.read_for(needs.dependent(position)))
    return rows.linear.least(seconds)


class _Rows:
    """The second one. `known`: what a later run does not make for the first time."""

    def __init__(self, problem: Problem, needs: Needs, before: Flags, known: Flags) -> None:
        self.problem, self.before = problem, before
        self.linear = _Linear()
        last = int(problem.segment.max())
        made = np.flatnonzero(before).tolist()
        makers = {s: [m for m in needs.makers[s] if self._may_run(m, last)] for s in made}
        self.there = {s: self.linear.variable() for s in made}
        """For each storage "there while the op runs" ..."""
        self.again = {s: self.linear.variable() for s in made if makers[s]}
        """... and "made again since"."""
        runs: dict[int, int] = {}
        for s, again in self.again.items():
            for m in makers[s]:
                if m not in runs:
                    extra = float(problem.seconds[m]) if known[problem.makes[m]].all() else 0.0
                    runs[m] = self.linear.variable(extra)
                    self._find_inputs(m, runs[m])
            self.linear.add([(again, 1.0), *((runs[m], -1.0) for m in makers[s])], 0.0)

    def _may_run(self, op: int, segment: int) -> bool:
        problem = self.problem
        home = problem.graph.op[problem.op_names[op]].segment == segment
        return home or bool(problem.again[op, segment])

    def _find(self, storage: int) -> list[tuple[int, float]]:
        return [(v[storage], -1.0) for v in (self.there, self.again) if storage in v]

    def _find_inputs(self, op: int, runs: int) -> None:
        for s in self.problem.reads[op].tolist():
            if self.before[s]:
                self.linear.add([(runs, 1.0), *self._find(s)], 0.0)

    def limit_bytes(self, own: set[int], free: int) -> None:
        size = self.problem.bytes
        scale = 1.0 / max(1, abs(free))
        heavy = [(v, float(size[s]) * scale) for s, v in self.there.items() if s not in own]
        self.linear.add(heavy, free * scale)

    def need(self, read: Flags) -> None:
        for s in self.there:
            if read[s]:
                self.linear.add(self._find(s), -1.0)
