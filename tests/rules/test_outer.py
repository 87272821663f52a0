"""Products of a column and a row that are added and never made: the same bits, and less time and memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.kernels.outer import plus_outer
from lowtide.rules import add_makers
from lowtide.rules.outer import Outer
from tests.training import QUICK, choosing, differences


def graph(inner: int) -> Graph:
    """A sum with a product of (2, 8, inner) by (2, inner, 3)."""
    specs = {"sum": "2, 8, 3", "one": f"2, 8, {inner}", "other": f"2, {inner}, 3", "product": "2, 8, 3", "made": "2, 8, 3"}  # fmt: skip
    values = [Value(n, 192, n, Kind.TEMPORARY, spec=f"f32[{s}]") for n, s in specs.items()]
    ops = [
        *(Op(f"make_{n}", "aten.sin.default", ("x",), (n,), 1) for n in ("sum", "one", "other")),
        Op("bmm", "aten.bmm.default", ("one", "other"), ("product",), 1),
        Op("add", "aten.add.Tensor", ("product", "sum"), ("made",), 1),
    ]
    segments = (Segment("forward"), Segment("backward"))
    return Graph((*values, Value("x", 4, "x")), tuple(ops), segments, (Outside("x"),), (Required("made", 1),))  # fmt: skip


def test_it_is_offered_for_a_column_times_a_row_only():
    (op,) = (o for o in add_makers(graph(1), (Outer(),)).ops if o.rule)
    assert (op.inputs, op.outputs, op.over) == (("sum", "one", "other"), ("made",), ("sum",))
    assert not [o for o in add_makers(graph(2), (Outer(),)).ops if o.rule]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 7, 33), (1, 1, 1), (3, 65, 130), (7, 33)])
def test_the_product_is_rounded_before_it_is_added(shape: tuple, dtype: torch.dtype, over: bool):
    total = torch.randn(shape, dtype=dtype)
    column = torch.randn(*shape[:-2], 1, shape[-2], dtype=dtype).transpose(-1, -2)
    row = torch.randn(*shape[:-2], 1, shape[-1], dtype=dtype)
    expected = total + column * row
    found = plus_outer(total, column, row, over=total if over else None)
    assert torch.equal(found, expected)
    assert (found.data_ptr() == total.data_ptr()) is over


class Attention(nn.Module):
    """Reads one memory again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.query = nn.Linear(32, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.before(x)
        state = memory.mean(1)
        for _ in range(6):
            weights = torch.bmm(memory, self.query(state).unsqueeze(2)).softmax(1)
            state = torch.bmm(weights.transpose(1, 2), memory).squeeze(1)
        return state.square().mean()


@pytest.mark.usefixtures("estimated")
def test_a_step_that_attends_again_and_again_has_the_same_bits():
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(32, 40, 32)
    fitted = copy.deepcopy(model)
    plan = choosing(lowtide.fit(fitted, (x,), budget="100%", rules=(Outer(),), **QUICK), "outer")
    assert plan.exact
    assert sum(plan.graph.op[name].rule == "outer" for _, name in plan.program) >= 6
    lowtide.apply(fitted, plan)
    assert not differences(model, fitted, (x,))
