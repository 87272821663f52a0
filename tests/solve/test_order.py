"""Ops that run sooner: a valid order of the same ops, that never needs more."""

from __future__ import annotations

from hypothesis import given

from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Value
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.order import sooner
from tests.strategies import graphs


def layer(over: tuple[str, ...] = (), effect: bool = False) -> Graph:
    """x -> y; and from y's gradient first that of x, then that of the weight."""
    sizes = {"x": 6, "y": 4, "w": 2, "dy": 4, "dx": 6, "dw": 6 if over else 2, "b": 0}
    values = tuple(Value(n, 10 * s, n, Kind.ACTIVATION) for n, s in sizes.items())
    values = (*values, Value("turned", 0, "dy"))
    ops = (
        Op("input", "make", ("b",), ("x",)),
        Op("layer", "mm", ("x", "w"), ("y",)),
        Op("by_input", "mm", ("dy", "w"), ("dx",), 1, effect=effect, rerun=not effect),
        Op("turn", "t", ("dy",), ("turned",), 1),
        Op("by_weight", "mm", ("turned", "x"), ("dw",), 1, over=over),
    )
    outside = (Outside("b"), Outside("w"), Outside("dy", 1, owned=False))
    required = (Required("y", 0), Required("dx", 1), Required("dw", 1))
    graph = Graph(values, ops, outside=outside, required=required)
    check_graph(graph)
    return graph


def peak(graph: Graph) -> int:
    return simulate(graph, unplanned(graph)).moments[-1].during


def test_a_weights_gradient_comes_before_that_of_the_input():
    graph = layer()
    other = sooner(graph)
    assert [o.name for o in other.ops] == ["input", "layer", "turn", "by_weight", "by_input"]
    assert peak(graph) - peak(other) == 60  # x is gone


def test_nothing_moves_past_an_effect_or_from_a_place_that_it_is_written_over():
    assert sooner(layer(effect=True)).ops == layer(effect=True).ops
    assert sooner(layer(over=("x",))).ops == layer(over=("x",)).ops


@given(graphs())
def test_the_order_is_valid_and_keeping_everything_needs_no_more(graph: Graph):
    other = sooner(graph)
    check_graph(other)
    assert sorted(o.name for o in other.ops) == sorted(o.name for o in graph.ops)
    check_program(graph, unplanned(other))
    before, after = simulate(graph, unplanned(graph)), simulate(graph, unplanned(other))
    assert after.peak <= before.peak
