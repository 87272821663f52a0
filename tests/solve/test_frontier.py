"""The memory/time curve: every point holds, more memory is never slower, and neighbours help each other."""

from __future__ import annotations

import pytest

import lowtide
from lowtide.errors import OptionError
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.frontier import solve_frontier
from lowtide.solve.planner import solve
from tests.solve.builders import chain, resnet


def test_every_point_fits_and_more_memory_is_never_slower():
    graph = resnet(3)
    found = solve_frontier(graph, 6, seconds=3.0)
    budgets = [budget for budget, _ in found]
    assert budgets == sorted(set(budgets))
    assert len(budgets) == 6
    for budget, result in found:
        timeline = simulate(graph, result.program)
        assert timeline.peak == result.peak <= budget
        assert result.bound <= result.seconds * (1 + 1e-9)
    seconds = [result.seconds for _, result in found]
    assert seconds == sorted(seconds, reverse=True)
    before = simulate(graph, unplanned(graph))
    assert budgets[-1] == before.peak
    assert seconds[-1] == pytest.approx(before.seconds)


def test_as_good_as_plans_made_one_by_one():
    """A chain is planned to the optimum, alone and as a point of the curve; only at the floor a search of its own finds more."""
    graph = chain(12)
    for budget, result in solve_frontier(graph, 5, seconds=3.0)[1:]:
        assert result.seconds == pytest.approx(solve(graph, budget, seconds=1.0).seconds)


def test_the_public_door():
    curve = lowtide.frontier(chain(8), points=4, seconds=1.0)
    assert len(curve) == 4
    assert [p.budget for p in curve] == sorted(p.budget for p in curve)
    assert curve.at("100%").overhead == 0
    assert curve.at(curve.points[0].peak) is curve.points[0]
    assert len(str(curve).splitlines()) == 5
    with pytest.raises(OptionError, match="smallest has"):
        curve.at("1%")
    with pytest.raises(OptionError, match="device"):
        curve.at("device")
    with pytest.raises(OptionError, match="at least 2"):
        lowtide.frontier(chain(8), points=1)
