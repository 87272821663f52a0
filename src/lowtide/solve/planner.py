"""Which solver plans this problem, and what is its answer worth? The one door to planning.

Goes in: a `Graph` with costs and a budget in bytes. Comes out: a `Result` whose program has been checked and simulated. Every
solver is a function from a graph and a budget to a program, listed in `SOLVERS`; this module measures, verifies and compares
them alike: no solver's own claim is believed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from lowtide.errors import GraphError, OptionError, did_you_mean
from lowtide.ir.check import check_program
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.sim.memory import Timeline, simulate
from lowtide.solve.baselines import BASELINES, QUICK_BASELINES
from lowtide.solve.bound import lower_bound, tighter_bound
from lowtide.solve.exact import exact
from lowtide.solve.needs import warm_up
from lowtide.solve.order import sooner
from lowtide.solve.play import Answers
from lowtide.solve.problem import make_problem
from lowtide.solve.result import Result, Status
from lowtide.solve.search import Effort, Search

__all__ = ["SOLVERS", "Progress", "solve"]

log = logging.getLogger("lowtide.solve")

_CLOSE = 1e-3
"""A plan this close to the bound is not worth more searching: stop early."""

_APART = 1_000_003
"""Between the seeds of two searches, which use those that follow."""

_SEARCH = 0.9
"""The search may last until this share of the time; the rest is for the bound."""


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows while planning."""

    seconds: float
    """Of the best program so far; infinite while none fits."""
    bound: float
    elapsed: float
    limit: float


Report = Callable[[Progress], None]
SOLVERS: tuple[str, ...] = ("auto", "search", "exact", *BASELINES)

_FEW_OPS = 40
"""Steps of up to so many ops are mostly proved in about a second: `auto` tries."""
_STATES = 10_000
"""The exact solver looks at this many states a second."""


def solve(
    graph: Graph,
    budget: int,
    *,
    solver: str = "auto",
    seconds: float = 30.0,
    plays: int | None = None,
    seed: int = 0,
    report: Report | None = None,
    known: Program | None = None,
) -> Result:
    """`known` is a program from before: the answer is not worse where that one fits.

    `plays` limits the search by candidate programs instead of by the clock: the same seed then gives the same program, on any
    machine that gets through them within `seconds`."""
    if solver not in SOLVERS:
        raise OptionError(
            f"no solver called {solver!r}{did_you_mean(solver, list(SOLVERS))} Known: {', '.join(SOLVERS)}"
        )
    if solver in BASELINES:
        return _baseline(graph, budget, solver)
    return _Planning(graph, budget, Effort(seconds, plays), seed, report, known).run(solver)


def _checked(graph: Graph, program: Program) -> Timeline:
    check_program(graph, program)
    return simulate(graph, program)


def _baseline(graph: Graph, budget: int, name: str) -> Result:
    started = time.perf_counter()
    timeline = _checked(graph, BASELINES[name](graph, budget))
    took = time.perf_counter() - started
    problem = make_problem(graph)
    return Result(
        status=Status.FEASIBLE if timeline.peak <= budget else Status.INFEASIBLE,
        program=timeline.program,
        seconds=timeline.seconds,
        peak=timeline.peak,
        bound=lower_bound(problem, budget),
        floor=timeline.peak,
        solver=name,
        solve_seconds=took,
        why=f"the baseline {name}, as it is",
    )


class _Planning:
    """One call of the planner."""

    def __init__(
        self,
        graph: Graph,
        budget: int,
        effort: Effort,
        seed: int,
        report: Report | None,
        known: Program | None,
    ) -> None:
        self.graph, self.budget, self.effort = graph, budget, effort
        self.seed, self.report, self.known = seed, report, known
        self.shown = math.inf
        self.search = Search(make_problem(sooner(graph)))
        self.search.warm_up()
        warm_up()
        self.started = time.perf_counter()
        self.keep_all = self.search.keep_all()
        self.bound = lower_bound(self.search.problem, budget)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def until(self, share: float) -> Effort:
        """What is left up to this share of the whole effort."""
        whole = self.effort.share(share)
        return Effort(max(0.0, whole.seconds - self.elapsed), whole.plays)

    def run(self, solver: str = "auto") -> Result:
        fits = self.keep_all.peak <= self.budget
        floor = self.search.floor(effort=self.until(0.03 if fits else 0.1), seed=self.seed)
        if fits:
            everything = self.search.program(self.keep_all)
            return self.result(everything, floor, "everything fits: nothing is dropped")
        proof = self.prove(solver, floor)
        if proof is not None:
            return proof
        rival = self.fastest_rival()
        start = self.start(floor, rival)
        if start is None:
            floor = self.lower(floor)
            start = floor if floor.peak <= self.budget else None
        if start is None and rival is not None:
            return self.result(rival[1].program, floor, f"{rival[0]}: the search found no other")
        if start is None:
            smallest = self.search.program(floor)
            return self.result(smallest, floor, "no program within the budget was found")
        best = self.improved(start)
        if best.seconds > self.bound * (1 + _CLOSE):
            left = (1 - _SEARCH) * self.effort.seconds
            tighter = tighter_bound(self.search.problem, self.budget, left)
            self.bound = max(self.bound, tighter)
        if rival is not None and rival[1].seconds < best.seconds:
            why = f"{rival[0]} was faster than what the search found"
            return self.result(rival[1].program, floor, why)
        why = "annealed from the greedy start"
        if best.seconds <= self.bound * (1 + 1e-9):
            why += ", and proved: no program within the budget is faster"
        return self.result(self.search.program(best), floor, why)

    def prove(self, solver: str, floor: Answers) -> Result | None:
        """The exact solver's answer, where it was asked for and has one; else what it has proved improves the bound.

        `auto` takes its proof and not its program: that may run ops in any order, and steps of several pieces whose order was
        changed so far were measured above what the simulator says."""
        ops = sum(not self.graph.is_view(o) for o in self.graph.captured)
        seconds = self.effort.seconds
        share = {"exact": 0.6 * seconds, "auto": min(1.0, 0.1 * seconds)}.get(solver, 0.0)
        if not share or (solver == "auto" and ops > _FEW_OPS):
            return None
        try:
            patience = max(share, 0.3 * seconds)  # states of large steps take longer
            nodes = int(share * _STATES)
            answer = exact(self.graph, self.budget, nodes=nodes, patience=patience)
        except KeyboardInterrupt:  # the search then returns what it has
            self.search.interrupted = True
            return None
        if answer.bound < math.inf:
            self.bound = max(self.bound, answer.bound)
        if answer.program is not None and solver == "exact":
            why = f"{ops} ops are few enough to prove it: no program within the budget is faster"
            return self.result(answer.program, floor, why, "exact")
        if answer.proved and answer.program is None:
            why = f"{ops} ops are few enough to prove it: no program is within the budget"
            floor = self.lower(floor)
            return self.result(self.search.program(floor), floor, why, "exact")
        return None

    def lower(self, floor: Answers) -> Answers:
        """A smaller peak than this, if there is one: it is what a refusal names."""
        found = self.search.floor(effort=self.until(0.6), seed=self.seed + 1)
        return min(floor, found, key=lambda f: (f.peak, f.seconds))

    def start(self, floor: Answers, rival: tuple[str, Timeline] | None) -> Answers | None:
        found = [self.search.descend(self.budget, self.until(0.5).seconds)]
        if rival is not None:
            found.append(self.search.like(rival[1]))
        if floor.peak <= self.budget:
            found.append(floor)
        within = [f for f in found if f is not None and f.peak <= self.budget]
        return min(within, key=lambda f: f.seconds, default=None)

    def improved(self, start: Answers) -> Answers:
        """The best of as many searches as there is time for: each ends in a valley of its own. Three that end alike are enough."""
        enough = self.bound * (1 + _CLOSE)
        ends: list[Answers] = []
        while True:
            found = self.search.improve(
                start,
                self.budget,
                effort=self.until(_SEARCH),
                seed=self.seed + _APART * len(ends),
                report=self.note,
                enough=enough,
            )
            ends.append(found)
            ends.sort(key=lambda e: e.seconds)
            alike = len(ends) > 2 and ends[2].seconds <= ends[0].seconds * (1 + _CLOSE)
            over = self.search.interrupted or self.until(_SEARCH).seconds <= 0
            if alike or over or ends[0].seconds <= enough or self.effort.plays is not None:
                return ends[0]

    def note(self, answers: Answers) -> None:
        self.shown = min(self.shown, answers.seconds)
        if self.report is not None:
            limit = self.effort.seconds
            self.report(Progress(self.shown, self.bound, self.elapsed, limit))

    def fastest_rival(self) -> tuple[str, Timeline] | None:
        """The fastest within the budget of the baselines and of what is known, so that the answer is never worse than these."""
        found: list[tuple[str, Timeline]] = []
        if self.known is not None:
            found.append(("what was found before", _checked(self.graph, self.known)))
        for name, baseline in QUICK_BASELINES.items():
            if self.elapsed > 0.3 * self.effort.seconds:
                break
            try:
                timeline = _checked(self.graph, baseline(self.graph, self.budget))
            except GraphError as error:  # it has no answer for this graph
                log.debug("the baseline %s gave up: %s", name, error)
                continue
            found.append((f"the baseline {name}", timeline))
        within = [f for f in found if f[1].peak <= self.budget]
        return min(within, key=lambda f: f[1].seconds, default=None)

    def result(self, program: Program, floor: Answers, why: str, solver: str = "search") -> Result:
        timeline = _checked(self.graph, program)
        fits = timeline.peak <= self.budget
        proved = fits and timeline.seconds <= self.bound * (1 + 1e-9)
        return Result(
            status=Status.OPTIMAL if proved else Status.FEASIBLE if fits else Status.INFEASIBLE,
            program=timeline.program,
            seconds=timeline.seconds,
            peak=timeline.peak,
            bound=self.bound,
            floor=min(floor.peak, timeline.peak),
            solver=solver,
            solve_seconds=self.elapsed,
            why=why,
        )
