"""Matrix products the other way round: offered for plain products, dropped where they are not clearly faster, and the same products."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.kernels.products import turned, turned_plus
from lowtide.measure.price import _outdone
from lowtide.rules import add_makers
from lowtide.rules.turned import Turned
from tests.training import QUICK, choosing, step_results


def graph(target: str, rows: int) -> Graph:
    shapes = {"x": (rows, 64), "w": (64, 128), "y": (rows, 128)}
    values = [Value(n, 4 * a * b, n, Kind.ACTIVATION, spec=f"f32[{a}, {b}]") for n, (a, b) in shapes.items()]  # fmt: skip
    op = Op("product", target, ("x", "w"), ("y",), 0, seconds=1e-3)
    outside = tuple(Outside(n) for n in ("x", "w"))
    return Graph(tuple(values), (op,), (Segment("forward"),), outside, (Required("y", 0),))


@pytest.mark.parametrize(
    ("target", "rows", "count"),
    [("aten.mm.default", 96, 1), ("aten.addmm.default", 96, 1), ("aten.bmm.default", 96, 0), ("aten.mm.default", 1, 0)],
)  # fmt: skip
def test_it_is_offered_for_large_products_of_matrices(target: str, rows: int, count: int):
    made = [o for o in add_makers(graph(target, rows), (Turned(),)).ops if o.rule]
    assert len(made) == count
    assert all((o.inputs, o.outputs) == (("x", "w"), ("y",)) for o in made)


@pytest.mark.parametrize(("seconds", "stays"), [(0.5e-3, True), (0.95e-3, False)])
def test_it_stays_where_it_is_clearly_faster(seconds: float, stays: bool):
    offered = add_makers(graph("aten.mm.default", 96), (Turned(),))
    priced = offered.with_ops(replace(o, seconds=seconds) if o.rule else o for o in offered.ops)
    assert _outdone(priced) == (set() if stays else {"product.turned"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 7, 3), (64, 100, 33), (2, 1, 9)])
def test_the_same_product(shape: tuple[int, int, int], dtype: torch.dtype):
    rows, inner, columns = shape
    x, w = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype)
    bias = torch.randn(columns, dtype=dtype)
    for found, expected in (
        (turned(x, w.t()), x @ w.t()),
        (turned_plus(bias, x, w.t()), torch.addmm(bias, x, w.t())),
    ):
        assert found.is_contiguous()
        ulps = 8 * torch.finfo(dtype).eps * inner**0.5
        torch.testing.assert_close(found, expected, rtol=ulps, atol=ulps)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


def test_a_step_with_every_product_turned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lowtide.measure.price._CLEARLY", 1e9)
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(96, 64)
    fitted = copy.deepcopy(model)
    options: dict[str, Any] = {**QUICK, "rules": (Turned(),), "allow": ("rounding",)}
    plan = choosing(lowtide.fit(fitted, (x,), budget="100%", **options), "turned")
    assert sum(plan.graph.op[name].rule == "turned" for _, name in plan.program) >= 3
    lowtide.apply(fitted, plan)
    one, other = step_results(model, (x,)), step_results(fitted, (x,))
    for name, gradient in one.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name])


@pytest.mark.usefixtures("estimated")
def test_where_nothing_was_measured_nothing_is_turned():
    plan = lowtide.fit(Layers(), (torch.randn(96, 64),), budget="100%", rules=(Turned(),), **QUICK)
    assert not [o for o in plan.graph.ops if o.rule]
