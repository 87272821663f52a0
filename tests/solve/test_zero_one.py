"""Do the papers' 0-1 programs give programs, and as good ones as their models can express? Judged by the exact solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph, Outside, Segment, Value
from lowtide.ir.program import Program, unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.baselines import zero_one
from lowtide.solve.baselines.checkmate import checkmate
from lowtide.solve.baselines.monet import monet
from lowtide.solve.baselines.zero_one import Bytes
from lowtide.solve.exact import exact
from tests.solve.builders import ADD, MM, SIN, TANH, Step, chain, resnet, run
from tests.strategies import graphs

BOTH = pytest.mark.parametrize("baseline", [checkmate, monet])
Baseline = Callable[[Graph, int], Program]


def peak_of(graph: Graph) -> int:
    return simulate(graph, unplanned(graph)).peak


@BOTH
@pytest.mark.parametrize("budget", [600, 500, 400, 300])
def test_on_a_chain_they_are_optimal(baseline: Baseline, budget: int) -> None:
    graph = chain(5)
    timeline = run(graph, baseline(graph, budget))
    assert timeline.peak <= budget
    assert timeline.seconds == exact(graph, budget).seconds


@BOTH
def test_on_an_uneven_chain_they_are_optimal(baseline: Baseline) -> None:
    step = Step()
    x = step.op("f0", MM, [step.parameter("w", 7)], 1_000_003, 5.0)
    for i, (size, seconds) in enumerate([(500_009, 1.0), (2_000_003, 2.5), (300_007, 0.25)], 1):
        x = step.op(f"f{i}", SIN, [x], size, seconds, saves=[x], workspace=10_007 * i)
    graph = step.graph(x)
    for share in (0.95, 0.8, 0.7):
        budget = int(peak_of(graph) * share)
        timeline, best = run(graph, baseline(graph, budget)), exact(graph, budget)
        assert (timeline.peak <= budget) == (best.program is not None)
        if best.program is not None:
            assert timeline.seconds == pytest.approx(best.seconds)


@BOTH
def test_a_skip_is_kept_or_made_again(baseline: Baseline) -> None:
    step = Step()
    x = step.op("in", MM, [step.parameter("w", 3)], 64, 4.0)
    for i in range(2):
        y = step.op(f"act{i}", TANH, [x], 64, 0.5)
        x = step.op(f"mix{i}", ADD, [y, x], 64, 2.0, saves=[y])
    graph = step.graph(x)
    budget = peak_of(graph) - 1
    timeline = run(graph, baseline(graph, budget))
    assert timeline.peak <= budget
    assert timeline.seconds == pytest.approx(exact(graph, budget).seconds)


@BOTH
def test_what_fits_is_left_alone(baseline: Baseline) -> None:
    graph = chain(4)
    assert run(graph, baseline(graph, peak_of(graph))).program == unplanned(graph)


@BOTH
def test_where_nothing_fits_the_smallest_is_the_answer(baseline: Baseline) -> None:
    graph = chain(4)
    smallest = run(graph, baseline(graph, 1))
    assert exact(graph, smallest.peak).program is not None
    assert exact(graph, smallest.peak - 1).program is None


@settings(max_examples=12, deadline=None)
@given(graphs(max_ops=6), st.floats(0.5, 1.0))
def test_they_are_valid_and_never_beat_the_optimum(graph: Graph, share: float) -> None:
    budget = int(peak_of(graph) * share)
    best = exact(graph, budget)
    assert best.proved or any(op.over for op in graph.ops)
    for baseline in (checkmate, monet):
        try:
            timeline = run(graph, baseline(graph, budget))
        except GraphError as error:  # a mark forbids to keep what may not run again
            assert "no solution" in str(error)  # noqa: PT017
            continue
        if timeline.peak <= budget:
            assert timeline.seconds >= best.bound


def test_monet_chooses_the_form_that_fits() -> None:
    """The backward op keeps both operands beside its workspace; its other form lets each go once it is copied."""
    step = Step()
    x = step.batch("x", 1)
    w = step.parameter("w", 1)
    a = step.op("a", TANH, [x], 100)
    b = step.op("b", MM, [a, w], 100, saves=[a])
    graph = step.graph(step.op("c", SIN, [b], 1))
    wide = replace(graph.op["b.backward"], workspace=200)
    copying = replace(
        wide, name="copying", inputs=(a,), outputs=("copy",), workspace=0, rule="form", of=wide.name
    )
    read = tuple("copy" if name == a else name for name in wide.inputs)
    lean = replace(
        wide, name="lean", inputs=read, seconds=9.0, workspace=0, rule="form", of=wide.name
    )
    ops = (
        o for op in graph.ops for o in ((wide, copying, lean) if op.name == wide.name else (op,))
    )
    graph = replace(graph, ops=tuple(ops), values=(*graph.values, Value("copy", 100, "copy")))
    roomy, tight = monet(graph, 10**6), run(graph, monet(graph, 420))
    assert "lean" not in roomy.counts
    assert {"copying", "lean"} <= set(tight.program.counts)
    assert tight.peak <= 420
    assert tight.seconds == exact(graph, 420).seconds


def test_monet_keeps_what_arrives_for_as_long_as_it_is_read() -> None:
    """The batch is the planner's to free; the first op, made again, reads it."""
    step = Step()
    x, w = step.batch("x", 90), step.parameter("w", 1)
    a = step.op("a", MM, [x, w], 100, saves=[])
    graph = step.graph(step.op("c", SIN, [step.op("b", TANH, [a], 100, saves=[a])], 1))
    mine = tuple(replace(o, owned=False) if o.value == x else o for o in graph.outside)
    graph = replace(graph, outside=mine)
    for share in (1.0, 0.9, 0.8, 0.7):
        budget = int(peak_of(graph) * share)
        timeline, best = run(graph, monet(graph, budget)), exact(graph, budget)
        assert (timeline.peak <= budget) == (best.program is not None)
        if best.program is not None:
            assert timeline.seconds == best.seconds


@BOTH
def test_large_graphs_are_refused(baseline: Baseline) -> None:
    with pytest.raises(GraphError, match="more than 20000 variables"):
        baseline(resnet(2), 10**9)


@BOTH
def test_no_answer_in_time_is_said(baseline: Baseline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_one, "SECONDS", 0.0)
    with pytest.raises(GraphError, match="no answer after 0 s"):
        baseline(chain(6), 350)


def test_monet_knows_two_segments() -> None:
    graph = Graph((Value("x", 1, "x"),), (), (Segment("alone"),), (Outside("x"),))
    with pytest.raises(GraphError, match="one forward and one backward"):
        monet(graph, 10)


def test_bytes_are_rounded_so_that_the_budget_holds() -> None:
    exactly, coarse = Bytes([300, 450, 0], 1000), Bytes([3_000_001, 7], 10**8)
    assert [exactly(300), exactly(450), exactly.room] == [2, 3, 6]
    assert coarse(3_000_001) * coarse.unit >= 3_000_001
    assert coarse.room * coarse.unit <= 10**8
