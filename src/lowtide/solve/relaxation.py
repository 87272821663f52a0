"""What must any program pay? A linear relaxation, solved by HiGHS through scipy.

*To make everything once*: whoever gets something runs one of its makers, which finds what it reads made by another. One op is the first to
make a storage, so of all that could be, those that read the same thing need it together: fractions of them do not get by with a
fraction of it. Fractions instead of yes and no make it a linear program.

*Within the budget*: when a captured op b of the last segment first runs, in whichever form, everything it certainly depends on has been
made, and nothing that certainly depends on it. Each storage is there while b runs or is not; what is there must fit beside b's own
inputs, outputs and workspace. After that, again, what an op reads is there still, or is made; also if it had been made before. So there are two
stretches of time, and an op may be paid for in both.

(Several moments in one program were tried: fractions of a maker spread over the times between them, and the bound got
worse.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from lowtide.solve.needs import Needs
from lowtide.solve.problem import Problem

__all__ = ["Relaxation"]

_SLACK = 1e-6
"""HiGHS proves optima to within its tolerances; this share of the answer is given up for them."""


class Relaxation:
    """Of one problem, for any budget."""

    def __init__(self, problem: Problem, needs: Needs) -> None:
        self.problem, self.needs = problem, needs
        count = len(problem.op_names)
        self.effects = np.flatnonzero(problem.effect[:count]).tolist()
        self.sources = [needs.sources(op) for op in range(count)]
        arriving = set(problem.arrives.items.tolist())
        self.first = {
            s: found
            for s, makers in enumerate(needs.makers)
            if s not in arriving and (found := [m for m in makers if s not in self.sources[m]])
        }
        """What can be the first to make each storage: not what is itself made from it, such as a copy back."""
        self.last = int(problem.segment.max()) if len(problem.segment) else 0
        home = [problem.graph.op[name].segment == self.last for name in problem.op_names]
        self.late = np.array(home, np.bool_) | problem.again[:count, self.last]
        """Ops that may run in the last segment."""
        wanted = (
            problem.graph.storage(r.value) for r in problem.graph.required if r.segment == self.last
        )
        self.wanted = {problem.storage_index[s] for s in wanted if s in problem.storage_index}
        """What must be there at the end."""

    def once(self, seconds: float) -> float:
        """Seconds that no program takes less than; 0.0 if HiGHS needs longer than `seconds` to tell."""
        linear = _Linear()
        early = self._early(linear)
        for storage in self._demanded():
            if storage in early.made:
                linear.add([(early.made[storage], -1.0)], -1.0)
        self._run_effects(linear, early.runs)
        return linear.least(seconds)

    def within(self, position: int, room: int, seconds: float) -> float:
        """The same for programs with so much room besides what is always there, by a look at the moment when the captured op at
        this position first runs."""
        problem, needs = self.problem, self.needs
        op = int(problem.order[position])
        linear = _Linear()
        early = self._early(linear)
        there = {s: linear.variable() for s in self.first}
        late = self._late(linear, there)
        before, after = needs.made_before(position), needs.dependent(position)
        own = set(problem.makes[op].tolist())
        for s, variable in there.items():
            linear.add([(variable, 1.0), (early.made[s], -1.0)], 0.0)
            if before[s]:
                linear.add([(early.made[s], -1.0)], -1.0)
            if after[s] and s not in own:
                linear.add([(early.made[s], 1.0)], 0.0)
        for s in self._demanded():
            if s in there:
                given = late.terms(s) if s in self.wanted else [early.made[s], *late.terms(s)]
                linear.add([(v, -1.0) for v in given], -1.0)
        self._run_effects(linear, early.runs, late.runs)
        self._fit(linear, there, op, room)
        return linear.least(seconds)

    def _early(self, linear: _Linear) -> _Stretch:
        def reads(op: int, storage: int) -> Iterable[int]:
            return self.sources[op].union(self.problem.reads[op].tolist())

        return _Stretch(linear, self.problem, self.first, reads, {}, self.effects)

    def _late(self, linear: _Linear, there: dict[int, int]) -> _Stretch:
        makers = {s: [m for m in self.needs.makers[s] if self.late[m]] for s in self.first}
        return _Stretch(
            linear, self.problem, {s: found for s, found in makers.items() if found},
            lambda op, storage: self.problem.reads[op].tolist(), there,
            only_there=lambda op, storage: storage in self.sources[op],
        )  # fmt: skip

    def _demanded(self) -> set[int]:
        """What every program makes: for the caller, and for ops that run in any case."""
        read = {s for op in self.effects for s in self.problem.reads[op].tolist()}
        return read | set(np.flatnonzero(self.problem.finished).tolist())

    def _run_effects(self, linear: _Linear, *runs: dict[int, int]) -> None:
        for op in self.effects:
            linear.add([(found[op], -1.0) for found in runs if op in found], -1.0)

    def _fit(self, linear: _Linear, there: dict[int, int], op: int, room: int) -> None:
        problem = self.problem
        own = {
            s
            for form in self.needs.forms(op)
            for s in (*problem.reads[form].tolist(), *problem.makes[form].tolist())
        }
        free = room - self.needs.least_beside(op)
        scale = 1.0 / max(1, abs(free))
        heavy = [(v, float(problem.bytes[s]) * scale) for s, v in there.items() if s not in own]
        linear.add(heavy, free * scale)


class _Stretch:
    """What is made in one stretch of time, and by which ops. `there`: what is there when it begins."""

    def __init__(
        self,
        linear: _Linear,
        problem: Problem,
        makers: dict[int, list[int]],
        reads: Callable[[int, int], Iterable[int]],
        there: dict[int, int],
        effects: Iterable[int] = (),
        only_there: Callable[[int, int], bool] = lambda op, storage: False,
    ) -> None:
        """`effects`: ops that run, whatever they make. `only_there`: of an op as the first to make something, whether what it reads must have been there."""
        self.linear, self.there = linear, there
        self.runs = {
            op: linear.variable(float(problem.seconds[op]))
            for op in sorted({m for found in makers.values() for m in found}.union(effects))
        }
        self.made = {s: linear.variable() for s in makers}
        for storage, found in makers.items():
            firsts = {m: self._first(m, len(problem.makes[m])) for m in found}
            linear.add([(self.made[storage], 1.0), *((v, -1.0) for v in firsts.values())], 0.0)
            needed: dict[tuple[int, bool], list[int]] = {}
            for m, variable in firsts.items():
                for source in reads(m, storage):
                    needed.setdefault((source, only_there(m, storage)), []).append(variable)
            for (source, old), variables in needed.items():
                given = [there[source]] if old and source in there else self.terms(source)
                if given:
                    linear.add([*((v, 1.0) for v in variables), *((v, -1.0) for v in given)], 0.0)

    def terms(self, storage: int) -> list[int]:
        """There from before, or made."""
        return [found[storage] for found in (self.there, self.made) if storage in found]

    def _first(self, op: int, outputs: int) -> int:
        """Whether the op is the first to make one of its outputs: if it has one only, whether it runs."""
        if outputs == 1:
            return self.runs[op]
        variable = self.linear.variable()
        self.linear.add([(variable, 1.0), (self.runs[op], -1.0)], 0.0)
        return variable


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

        if not self.limits or seconds <= 0:
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
