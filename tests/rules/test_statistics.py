"""A batch norm in two, and what is made of its output without it: what is offered, and a step with it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Graph
from lowtide.kernels.loops import COMPILED
from lowtide.rules.in_place import InPlace
from lowtide.rules.statistics import NORMALISED, STATISTICS, Statistics
from tests.training import QUICK, choosing, differences

pytestmark = pytest.mark.skipif(not COMPILED, reason="loops need numba")


class Block(nn.Module):
    """A residual block, and what else may follow a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        conv = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4))
        self.first, self.second, self.third, self.fourth = conv
        self.norms = nn.ModuleList(nn.BatchNorm2d(16, affine=number != 2) for number in range(4))

    def forward(self, x: Tensor) -> Tensor:
        one, two, three, four = self.norms
        y = one(self.first(x)).relu()
        y = (two(self.second(y)) + x).relu()
        y = nn.functional.hardtanh(three(self.third(y)), 0.0, 6.0)
        y = four(self.fourth(y))
        return (y + y.sigmoid()).mean()


def fitted(budget: str) -> tuple[nn.Module, nn.Module, Tensor, lowtide.Plan]:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(8, 16, 24, 24)
    twin = copy.deepcopy(model)
    plan = lowtide.fit(twin, (x,), budget=budget, rules=(Statistics(), InPlace()), **QUICK)
    return model, twin, x, plan


def offered(graph: Graph, target: str) -> list[str]:
    return [graph.op[o.of].target for o in graph.ops if o.target == target]


def test_what_is_offered():
    graph = fitted("100%")[3].graph
    assert len(offered(graph, STATISTICS)) == 4
    made = offered(graph, NORMALISED)
    # The sum with a shortcut is made with its ReLU only; what the last batch norm made is read twice.
    assert sorted(made) == ["aten.add.Tensor", "aten.hardtanh.default", "aten.relu.default", "aten.relu.default"]  # fmt: skip
    assert not any(o.effect for o in graph.ops if o.rule)


def test_a_step_has_the_same_bits():
    model, twin, x, plan = fitted("100%")
    plan = choosing(plan, "statistics")
    targets = [plan.graph.op[name].target for _, name in plan.program]
    assert targets.count(STATISTICS) == targets.count(NORMALISED) == 4
    assert "aten.relu.default" not in targets
    assert plan.exact
    lowtide.apply(twin, plan)
    assert not differences(model, twin, (x,))


def test_a_step_within_less_has_the_same_bits():
    model, twin, x, plan = fitted("60%")
    assert plan.exact
    assert not differences(model, twin, (x,))


def test_in_evaluation_nothing_is_counted():
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(8, 16, 24, 24)
    plan = lowtide.fit(model, (x,), budget="100%", rules=(Statistics(),), **QUICK)
    assert not offered(plan.graph, STATISTICS)
