"""How much time does each amount of memory cost? The planner's answers along the whole curve, in about the time of one plan.

From keeping everything down to the floor, budget by budget: each search starts from its neighbour's answers, drops a little
more where that no longer fits, and gets its share of the effort. In the end every budget takes the fastest plan of those
that fit it, so the curve never rises with more memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lowtide.errors import OptionError
from lowtide.ir.check import check_program
from lowtide.ir.graph import Graph
from lowtide.sim.memory import simulate
from lowtide.solve.bound import lower_bound
from lowtide.solve.greedy import Descent
from lowtide.solve.needs import warm_up
from lowtide.solve.order import sooner
from lowtide.solve.play import Answers
from lowtide.solve.problem import make_problem
from lowtide.solve.result import Result, Status
from lowtide.solve.search import Effort, Search

__all__ = ["solve_frontier"]

_FLOOR = 0.15
"""Share of the effort that goes into the smallest peak."""


def solve_frontier(
    graph: Graph,
    points: int = 12,
    *,
    seconds: float = 30.0,
    plays: int | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> list[tuple[int, Result]]:
    """(budget, result) from the smallest budget to the one where everything is kept. `report` hears (done, of)."""
    if points < 2:
        raise OptionError(
            f"a frontier has at least 2 points, its ends: {points} points were asked for"
        )
    search = Search(make_problem(sooner(graph)))
    search.warm_up()
    warm_up()
    effort, started = Effort(seconds, plays), time.perf_counter()
    everything = search.keep_all()
    floor = search.floor(effort=effort.share(_FLOOR), seed=seed)
    span = everything.peak - floor.peak
    budgets = [everything.peak - span * i // (points - 1) for i in range(points)]
    found: list[tuple[int, Answers]] = [(everything.peak, everything)]
    for number, budget in enumerate(budgets[1:], 1):
        left = effort.seconds - (time.perf_counter() - started)
        share = Effort(
            max(0.0, left) / (points - number), effort.share((1 - _FLOOR) / points).plays
        )
        start = _start(search, found[-1][1], floor, budget)
        found.append((budget, search.improve(start, budget, effort=share, seed=seed)))
        if report is not None:
            report(number, points - 1)
    took = time.perf_counter() - started
    best: list[tuple[int, Result]] = []
    fastest = floor
    for budget, answers in reversed(found):
        fastest = min(fastest, answers, key=lambda a: a.seconds)
        best.append((budget, _result(graph, search, fastest, budget, floor.peak, took)))
    return best


def _start(search: Search, neighbour: Answers, floor: Answers, budget: int) -> Answers:
    descent = Descent(search.player)
    found = [descent.descend(budget), descent.go_on(neighbour, budget)]
    within = [f for f in found if f is not None and f.peak <= budget]
    return min(within, key=lambda f: f.seconds, default=floor)


def _result(
    graph: Graph, search: Search, answers: Answers, budget: int, floor: int, took: float
) -> Result:
    program = search.program(answers)
    check_program(graph, program)
    timeline = simulate(graph, program)
    bound = lower_bound(search.problem, budget)
    proved = timeline.seconds <= bound * (1 + 1e-9)
    return Result(
        status=Status.OPTIMAL if proved else Status.FEASIBLE,
        program=timeline.program,
        seconds=timeline.seconds,
        peak=timeline.peak,
        bound=bound,
        floor=min(floor, timeline.peak),
        solver="search",
        solve_seconds=took,
        why="one point of a frontier, annealed from its neighbour",
    )
