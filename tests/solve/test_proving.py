"""When does the planner prove its answer, and what does it say then?"""

from __future__ import annotations

import math

import pytest

from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve import planner
from lowtide.solve.exact import Exact, exact
from lowtide.solve.planner import solve
from lowtide.solve.result import Status
from tests.solve.builders import chain


def test_auto_proves_small_steps() -> None:
    graph = chain(8)
    budget = simulate(graph, unplanned(graph)).peak // 2
    result = solve(graph, budget, seconds=2.0)
    assert (result.solver, result.status) == ("search", Status.OPTIMAL)
    assert result.seconds == result.bound == exact(graph, budget).seconds
    assert "proved" in result.why


def test_auto_says_that_nothing_fits() -> None:
    graph = chain(8)
    result = solve(graph, 290, seconds=1.0)
    assert (result.solver, result.status) == ("exact", Status.INFEASIBLE)
    assert "no program is within the budget" in result.why
    assert math.isfinite(result.bound)
    assert result.peak == result.floor > 290


def test_what_is_not_proved_still_improves_the_bound() -> None:
    graph = chain(16)
    budget = simulate(graph, unplanned(graph)).peak * 3 // 10
    search, auto = (solve(graph, budget, solver=s, seconds=1.0) for s in ("search", "auto"))
    assert auto.solver == search.solver == "search"
    assert search.bound < auto.bound <= auto.seconds
    assert auto.seconds <= search.seconds


def test_the_exact_solver_takes_the_time_it_is_given() -> None:
    graph = chain(10)
    budget = simulate(graph, unplanned(graph)).peak // 2
    assert solve(graph, budget, solver="search", seconds=0.5).solver == "search"
    assert solve(graph, budget, solver="exact", seconds=5.0).solver == "exact"
    assert solve(graph, budget, solver="exact", seconds=0.01).solver == "search"


def test_ctrl_c_returns_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Exact:
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "exact", interrupted)
    graph = chain(8)
    budget = simulate(graph, unplanned(graph)).peak // 2
    result = solve(graph, budget, seconds=20.0)
    assert result.status is Status.FEASIBLE
    assert result.solve_seconds < 10
