"""Lower bounds: never above what some program reaches, and tight where the answer is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.ir.graph import Graph, Op, Outside, Required, Value
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.bound import lower_bound, tighter_bound
from lowtide.solve.planner import solve
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.solve.builders import MM, TANH, Step, chain, resnet
from tests.strategies import graphs


@settings(max_examples=40, deadline=None)
@given(graphs(max_ops=9, fleeting=False), st.randoms(use_true_random=False))
def test_the_bounds_hold_for_every_answer(graph, random):
    """No combination of answers and choices beats the bound at its own peak: all of them, or some hundred at random."""
    search = Search(make_problem(graph))
    gaps = np.flatnonzero(search.problem.gaps.open)
    assume(0 < len(gaps) <= 6)
    codes = [*product(range(3), repeat=len(gaps))]
    fastest: dict[int, float] = {}
    for code in random.sample(codes, min(len(codes), 243)):
        state, choice = search.problem.gaps.start_state.copy(), search.player.no_choice()
        state[gaps] = code
        for place in search.moves.options:
            choice[place] = random.randrange(4)
        answers = search.player.play(state, choice)
        if answers is not None:
            fastest[answers.peak] = min(answers.seconds, fastest.get(answers.peak, np.inf))
    for peak, seconds in fastest.items():
        assert lower_bound(search.problem, peak) <= seconds * (1 + 1e-9)
        assert tighter_bound(search.problem, peak, 5.0) <= seconds * (1 + 1e-9)


def test_what_is_first_made_late_is_no_extra():
    """Forward makes `mask` only for backward; a plan that makes it there runs it once, like the captured step."""
    step = Step()
    x = step.batch("x", 1)
    a = step.op("a", TANH, [x, step.parameter("w", 1)], 10, saves=[x])
    mask = step.op("mask", TANH, [x], 1000, saves=[])
    b = step.op("b", MM, [a], 10, saves=[mask])
    c = step.op("c", MM, [b], 1000, saves=[b], backward_seconds=1.0)
    graph = step.graph(step.op("d", MM, [c], 1, saves=[c]))
    before = simulate(graph, unplanned(graph))
    result = solve(graph, before.peak - 900, seconds=1.0)
    assert result.peak <= before.peak - 900
    assert result.seconds == before.seconds
    assert result.bound <= before.seconds


def test_what_is_made_again_is_made_from_something():
    """All but the ends of a chain must go: then it is made again whole, not only what backward reads."""
    step = Step()
    now = step.op("first", MM, [step.batch("x", 1), step.parameter("w", 1)], 1)
    for i in range(12):
        # Backward reads every third one.
        now = step.op(f"a{i}", TANH, [now], 100, saves=[f"a{i}"] if i % 3 == 2 else [])
    graph = step.graph(now)
    budget = int(simulate(graph, unplanned(graph)).peak * 0.7)
    problem = make_problem(graph)
    loose, tight = lower_bound(problem, budget), tighter_bound(problem, budget, 10.0)
    found = solve(graph, budget, seconds=1.0)
    assert loose < tight <= found.seconds * (1 + 1e-9)


def test_a_region_is_as_dear_as_what_is_inside():
    """The last op alone is cheap, but what it reads is not; the region that needs nothing is not cheap either."""
    values = [Value(name, 8, name) for name in ("x", "inside", "end")]
    ops = [
        Op("heavy", "mm", ("x",), ("inside",), seconds=10.0),
        Op("light", "tanh", ("inside",), ("end",), seconds=1.0),
        Op("region", "lowtide.slices.4", ("x",), ("end",), seconds=10.5, rule="slices", of="light"),
    ]
    graph = Graph(
        tuple(values), tuple(ops), outside=(Outside("x"),), required=(Required("end", 0),)
    )
    problem = make_problem(graph)
    assert lower_bound(problem, 100) == 1.0
    assert tighter_bound(problem, 100, 5.0) == pytest.approx(10.5, rel=1e-5)


def test_an_op_of_many_forms_is_as_dear_as_those_that_make_all_of_it():
    made = ("dx", "dw")
    values = [Value(name, 8, name) for name in ("x", *made)]
    parts = [
        Op(f"{one}{i}", "part", ("x",), (one,), seconds=2.0 + i, rule="split", of="both")
        for one in made
        for i in range(6)
    ]
    both = Op("both", "backward", ("x",), made, seconds=5.0)
    required = tuple(Required(name, 1) for name in made)
    graph = Graph(tuple(values), (both, *parts), outside=(Outside("x"),), required=required)
    assert lower_bound(make_problem(graph), 100) == 4.0


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_tighter_is_tighter(share):
    graph = resnet(4)
    budget = int(simulate(graph, unplanned(graph)).peak * share)
    problem = make_problem(graph)
    assert lower_bound(problem, budget) < tighter_bound(problem, budget, 10.0)


def test_nothing_is_forced_where_everything_fits():
    graph = chain(9)
    before = simulate(graph, unplanned(graph))
    assert tighter_bound(make_problem(graph), before.peak, 5.0) == pytest.approx(before.seconds)
