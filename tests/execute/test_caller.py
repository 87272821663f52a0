"""Is what the caller's code takes counted where it runs, and gone before anything is lowered?"""

from lowtide.execute.caller import with_caller, without_caller
from lowtide.execute.pieces import Run, graph_number, home_of, merge, part
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.json import graph_hash
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.planner import solve
from lowtide.solve.result import Status
from tests.solve.builders import chain

GRAPH = chain(6)
PLAIN = simulate(GRAPH, unplanned(GRAPH))


def test_it_is_counted_at_the_start_of_backward_and_at_the_end() -> None:
    before = with_caller(GRAPH, {1: 10**6})
    check_graph(before)
    assert simulate(before, unplanned(before)).peak == PLAIN.arrivals[1] + 10**6
    after = with_caller(GRAPH, {}, 10**6)
    check_graph(after)
    assert PLAIN.base + 10**6 <= simulate(after, unplanned(after)).peak < PLAIN.peak + 10**6


def test_a_plan_makes_room_for_it() -> None:
    extra = PLAIN.peak - PLAIN.arrivals[1] + 50
    graph = with_caller(GRAPH, {1: extra})
    before = simulate(graph, unplanned(graph)).peak
    result = solve(graph, before - 50, seconds=2.0)
    assert result.status is not Status.INFEASIBLE
    check_program(graph, result.program)
    kept = [sum(GRAPH.value[s].bytes for s in simulate(g, p).kept[0] if s in GRAPH.value) for g, p in (
        (GRAPH, unplanned(GRAPH)), without_caller(graph, result.program))]  # fmt: skip
    assert kept[1] < kept[0]


def test_it_leaves_no_trace() -> None:
    graph = with_caller(GRAPH, {0: 1, 1: 100}, 100)
    back, program = without_caller(graph, unplanned(graph))
    assert graph_hash(back) == graph_hash(GRAPH)
    assert program == unplanned(GRAPH)


def test_runs_in_any_order_are_merged_and_taken_apart() -> None:
    """Two models that train against each other: forward 0, forward 1, backward 1, forward 2, backward 2, backward 0."""
    homes = [(0, 5), (1, 2), (3, 4)]
    graph = merge([Run(min(i, 1), GRAPH, home=home) for i, home in enumerate(homes)])
    check_graph(graph)
    assert [home_of(graph, i) for i in range(3)] == homes
    assert [graph_number(graph, i) for i in range(3)] == [0, 1, 1]
    whole = with_caller(graph, dict.fromkeys(range(6), 100), 100)
    check_graph(whole)
    check_program(whole, unplanned(whole))
    usual = merge([Run(0, GRAPH), Run(1, GRAPH)])
    for index in range(3):
        mine = part(whole, unplanned(whole), index)
        assert graph_hash(mine.graph) == graph_hash(part(usual, unplanned(usual), 0).graph)
        assert mine.program == unplanned(GRAPH)
