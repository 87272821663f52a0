"""What must any program pay after a certain moment of backward? A linear relaxation, solved by HiGHS through scipy.

When a captured op b of the last segment first runs, everything it certainly depends on has been made. Of that, each storage is
there while b runs or is not; what is there must fit beside b's own inputs, outputs and workspace. What ops that depend on b
read is then either there or made again, which takes a maker's seconds; and what that maker reads must be there or be made again
in turn. Fractions instead of yes and no make it a linear program; its optimum is what no program can avoid on top of making
everything once.

An op that is run again counts only if all it certainly has to make had been made before: else it may be the first to make the
rest. (Several moments in one program were tried: fractions of a maker spread over the times between them, and the bound got
worse.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowtide.solve.gaps import Flags
from lowtide.solve.needs import Needs
from lowtide.solve.problem import Problem

__all__ = ["relaxed_extra"]

_SLACK = 1e-6
"""HiGHS proves optima to within its tolerances; this share of the answer is given up for them."""


def relaxed_extra(
    problem: Problem, needs: Needs, position: int, room: int, seconds: float
) -> float:
    """Seconds beyond making everything once that no program can avoid; 0.0 if HiGHS needs more than `seconds` to tell."""
    from scipy.optimize import linprog

    op = int(problem.order[position])
    rows = _Rows(problem, needs, needs.made_before(position))
    if not rows.there:
        return 0.0
    own = {*problem.reads[op].tolist(), *problem.makes[op].tolist()}
    rows.limit_bytes(own, room - needs.least_beside(op))
    rows.need(needs.read_for(needs.dependent(position)))
    done = linprog(
        np.array(rows.cost),
        A_ub=rows.matrix(),
        b_ub=np.array(rows.limits),
        bounds=(0.0, 1.0),
        method="highs",
        options={"time_limit": seconds},
    )
    return max(0.0, float(done.fun)) * (1 - _SLACK) if done.status == 0 else 0.0


class _Rows:
    """The linear program as it grows: variables between 0 and 1, rows `sum(coefficient * variable) <= limit`."""

    def __init__(self, problem: Problem, needs: Needs, before: Flags) -> None:
        self.problem, self.before = problem, before
        self.cost: list[float] = []
        self.limits: list[float] = []
        self.row: list[int] = []
        self.column: list[int] = []
        self.factor: list[float] = []
        last = int(problem.segment.max())
        made = np.flatnonzero(before).tolist()
        makers = {s: [m for m in needs.makers[s] if self._may_run(m, last)] for s in made}
        self.there = {s: self._variable() for s in made}
        """For each storage "there while the op runs" ..."""
        self.again = {s: self._variable() for s in made if makers[s]}
        """... and "made again since"."""
        known = before | ~needs.certain
        runs: dict[int, int] = {}
        for s, again in self.again.items():
            for m in makers[s]:
                if m not in runs:
                    extra = float(problem.seconds[m]) if known[problem.makes[m]].all() else 0.0
                    runs[m] = self._variable(extra)
                    self._find_inputs(m, runs[m])
            self._add([(again, 1.0), *((runs[m], -1.0) for m in makers[s])], 0.0)

    def _may_run(self, op: int, segment: int) -> bool:
        problem = self.problem
        home = problem.graph.op[problem.op_names[op]].segment == segment
        return home or bool(problem.again[op, segment])

    def _variable(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def _add(self, terms: Sequence[tuple[int, float]], limit: float) -> None:
        self.row += [len(self.limits)] * len(terms)
        self.column += [v for v, _ in terms]
        self.factor += [f for _, f in terms]
        self.limits.append(limit)

    def _find(self, storage: int) -> list[tuple[int, float]]:
        return [(v[storage], -1.0) for v in (self.there, self.again) if storage in v]

    def _find_inputs(self, op: int, runs: int) -> None:
        for s in self.problem.reads[op].tolist():
            if self.before[s]:
                self._add([(runs, 1.0), *self._find(s)], 0.0)

    def limit_bytes(self, own: set[int], free: int) -> None:
        size = self.problem.bytes
        scale = 1.0 / max(1, abs(free))
        heavy = [(v, float(size[s]) * scale) for s, v in self.there.items() if s not in own]
        self._add(heavy, free * scale)

    def need(self, read: Flags) -> None:
        for s in self.there:
            if read[s]:
                self._add(self._find(s), -1.0)

    def matrix(self) -> object:
        from scipy.sparse import csr_matrix

        shape = (len(self.limits), len(self.cost))
        return csr_matrix((self.factor, (self.row, self.column)), shape=shape)
