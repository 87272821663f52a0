"""Parts' gradients added where they lie: the same bits as with zeros around them, in a loop over steps and by themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.kernels.placing import placed
from lowtide.rules import add_makers
from lowtide.rules.in_place import InPlace
from lowtide.rules.placed import Placed
from tests.training import QUICK, choosing, differences

ONE = (Placed(),)


def graph(readers: int = 1) -> Graph:
    """A sum and a part among zeros, added; `readers` of the zeros."""
    spec, size = "f32[2, 8, 3]", 192
    values = [Value(n, size, n, Kind.TEMPORARY, spec=spec) for n in ("sum", "whole", "made")]
    values += [Value("part", 24, "part", Kind.TEMPORARY, spec="f32[2, 3]"), Value("x", 4, "x")]
    ops = [
        Op("make_sum", "aten.sin.default", ("x",), ("sum",), 1),
        Op("make_part", "aten.cos.default", ("x",), ("part",), 1),
        Op("pad", "aten.select_backward.default", ("part",), ("whole",), 1),
        Op("add", "aten.add.Tensor", ("sum", "whole"), ("made",), 1),
    ]
    required = [Required("made", 1)]
    if readers > 1:
        values.append(Value("other", size, "other", Kind.TEMPORARY, spec=spec))
        ops.append(Op("again", "aten.sin.default", ("whole",), ("other",), 1))
        required.append(Required("other", 1))
    segments = (Segment("forward"), Segment("backward"))
    return Graph(tuple(values), tuple(ops), segments, (Outside("x"),), tuple(required))


def test_it_is_offered_where_nobody_else_reads_the_zeros():
    (op,) = (o for o in add_makers(graph(), ONE).ops if o.rule)
    assert (op.inputs, op.outputs, op.of, op.over) == (("sum", "part"), ("made",), "add", ("sum",))
    assert not [o for o in add_makers(graph(2), ONE).ops if o.rule]


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_gives_the_sum_with_zeros(over: bool, dtype: torch.dtype):
    total = torch.randn(3, 7, 5).to(dtype)
    total[0], total[1, 2] = -0.0, 0.0
    part = torch.randn(3, 2, 5).to(dtype)
    part[0], part[1] = -0.0, -0.0
    zeros = torch.zeros_like(total)
    zeros[:, 2:6:2] = part
    expected = total + zeros
    found = placed(total, part, 1, 2, 6, 2, True, over=total if over else None)
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())
    assert (found.data_ptr() == total.data_ptr()) is over


class Loop(nn.Module):
    """Reads one step after another, two of them twice, and a stretch of steps; `kind` says which of these parts are read."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.before, self.cell = kind, nn.Linear(6, 64), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        given = self.before(x)
        state, total = given[:, 0].detach(), x.new_zeros(())
        steps = [1, 3, 3, -1, 2] if self.kind == "twice" else range(given.shape[1])
        for t in steps:
            state = torch.tanh(self.cell(torch.cat([given[:, t], state], 1)))
            total = total + (state.relu() * -0.0 + state).sum()
        if self.kind == "stretches":
            total = total + given[:, 1:4].square().sum() + given[:, ::2].exp().sum()
        return total + (given.sin().sum() if self.kind == "whole" else 0)


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize("kind", ["steps", "twice", "stretches", "whole"])
def test_a_step_has_the_same_bits(kind: str):
    torch.manual_seed(0)
    model, x = Loop(kind), torch.randn(64, 24, 6)
    fitted = copy.deepcopy(model)
    plan = choosing(lowtide.fit(fitted, (x,), budget="100%", rules=ONE, **QUICK), "placed")
    assert sum(plan.graph.op[name].rule == "placed" for _, name in plan.program) >= 3
    lowtide.apply(fitted, plan)
    assert not differences(model, fitted, (x,))


@pytest.mark.usefixtures("estimated")
def test_no_zeros_as_large_as_the_whole_are_made():
    torch.manual_seed(0)
    model, x = Loop("steps"), torch.randn(64, 40, 6)
    plan = lowtide.fit(model, (x,), budget="80%", rules=(Placed(), InPlace()), seconds=4.0)
    ran = [plan.graph.op[name] for _, name in plan.program]
    assert sum(o.target == "aten.select_backward.default" for o in ran) < 10, "of 40"
    assert plan.exact
