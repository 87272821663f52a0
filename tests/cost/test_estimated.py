"""A graph is priced from names and shapes alone."""

from __future__ import annotations

import pytest

from lowtide.cost.analytic import DEVICES, REACHED, Spec, estimate, sheet_for
from lowtide.cost.estimated import estimated
from lowtide.ir.graph import Graph, Op, Outside, Required, Value

A100 = DEVICES[0]


def graph(target: str, inputs: dict[str, str], outputs: dict[str, str], **view: str) -> Graph:
    specs = {**inputs, **outputs}
    values = tuple(
        Value(n, 0 if n in view else 64, view.get(n, n), spec=s) for n, s in specs.items()
    )
    op = Op("op", target, tuple(inputs), tuple(outputs), seconds=99.0, workspace=99)
    outside = tuple(Outside(n) for n in inputs)
    return Graph(values, (op,), outside=outside, required=tuple(Required(n, 0) for n in outputs))


def seconds(priced: Graph) -> float:
    return priced.ops[0].seconds


def test_an_op_costs_what_its_shapes_say():
    made = estimated(graph("aten.mm.default", {"a": "f32[64, 32]", "b": "f32[32, 16]"}, {"c": "f32[64, 16]"}), A100)  # fmt: skip
    specs = [Spec("f32", (64, 32)), Spec("f32", (32, 16))]
    wanted = estimate("aten.mm.default", specs, [Spec("f32", (64, 16))], A100)
    assert (seconds(made), made.ops[0].workspace) == (wanted.seconds, 0)


def test_workspaces_are_those_of_the_cpu():
    shapes = {"x": "f32[2, 3, 8, 8]", "w": "f32[4, 3, 3, 3]"}
    step = graph("aten.convolution.default", shapes, {"y": "f32[2, 4, 8, 8]"})
    assert estimated(step, sheet_for("cpu")).ops[0].workspace == 1.5 * 4 * 2 * 4 * 8 * 8
    assert estimated(step, A100).ops[0].workspace == 0


def test_views_are_free():
    made = estimated(graph("aten.view.default", {"a": "f32[64]"}, {"b": "f32[8, 8]"}, b="a"), A100)
    assert (seconds(made), made.ops[0].workspace) == (0.0, 0)


def test_a_gather_reads_what_it_returns_and_not_the_whole_table():
    small, large = (
        estimated(graph("aten.embedding.default", {"table": f"f32[{n}, 8]", "i": "i64[4]"}, {"o": "f32[4, 8]"}), A100)
        for n in (10, 10**7)
    )  # fmt: skip
    assert seconds(small) == seconds(large)


@pytest.mark.parametrize(("name", "products"), [("lstm_layer", 1), ("lstm_layer_backward", 2)])
def test_a_recurrent_layer_multiplies_its_weights_at_every_step(name: str, products: int):
    inputs = {"x": "f32[100, 64, 512]", "h": "f32[64, 512]", "w": "f32[2048, 512]", "u": "f32[2048, 512]"}  # fmt: skip
    made = estimated(graph(f"lowtide.{name}.default", inputs, {"y": "f32[100, 64, 512]"}), A100)
    flops = products * 2 * 100 * 64 * 2 * 2048 * 512
    assert seconds(made) == pytest.approx(flops / A100.flops("f32") / REACHED, rel=0.05)
