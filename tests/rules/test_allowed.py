"""What a user may allow besides exact plans: what is offered then, how far gradients are off, and that it is said."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.measure.peak import held_bytes, measure_peak
from lowtide.plan.plan import Plan
from lowtide.rules import Rule
from lowtide.rules.move import Move
from lowtide.rules.smaller import Halves, QuarterBytes
from tests.training import QUICK, differences

pytestmark = pytest.mark.usefixtures("estimated")


class Net(nn.Module):
    """A tensor of each layer waits for backward."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        layers = [nn.Linear(256, 256) for _ in range(12)]
        self.body = nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh(), *between)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


def batch() -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 1024 * 256).sin().reshape(1024, 256),)


def planned_with(rule: Rule, model: nn.Module, share: float = 0.6) -> Plan:
    """A plan that uses the rule, as one would where its ops cost nothing."""
    allow = (rule.exactness.value,)
    first = lowtide.fit(
        copy.deepcopy(model), batch(), budget="200%", allow=allow, rules=(rule,), **QUICK
    )
    graph = first.graph.with_ops(replace(o, seconds=0.0) if o.rule else o for o in first.graph.ops)
    budget = int(share * first.unplanned_peak)
    plan = lowtide.plan(replace(first, graph=graph), budget, seconds=1.0)
    assert rule.name in {plan.graph.op[name].rule for name in plan.program.counts}
    lowtide.apply(model, plan)
    return plan


def peak(model: nn.Module) -> int:
    args = batch()
    model(*args).backward()
    model.zero_grad(set_to_none=True)
    return held_bytes(model, args) + measure_peak(lambda: model(*args).backward())


@pytest.mark.parametrize(
    ("rule", "error"), [(Halves(least=0), 3e-2), (QuarterBytes(least=0), 1e-1)]
)
def test_smaller_copies_for_backward(rule: Rule, error: float):
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    plan = planned_with(rule, model)
    assert not plan.exact
    assert peak(model) <= plan.budget
    losses = [net(*batch()) for net in (model, twin)]
    assert torch.equal(*losses), "forward is untouched"
    for net, loss in zip((model, twin), losses, strict=True):
        net.zero_grad()
        loss.backward()
    off = [
        ((p.grad - q.grad).norm() / q.grad.norm()).item()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    ]
    assert len(off) == 24
    assert 0 < max(off) < error


@pytest.mark.parametrize("rule", [Halves(least=0), QuarterBytes(least=0), Move(least=0)])
def test_nothing_of_it_without_leave(rule: Rule):
    plan = lowtide.fit(Net(), batch(), budget="100%", rules=(rule,), **QUICK)
    assert not any(op.rule for op in plan.graph.ops)


def test_moved_tensors_come_back_to_the_bit():
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    plan = planned_with(Move(least=0), model)
    assert plan.exact
    assert "through other memory" in str(plan)
    assert peak(model) <= plan.budget
    assert not differences(twin, model, batch())


@pytest.mark.parametrize("between", [nn.LayerNorm(256), nn.Dropout(0.1)], ids=["norm", "dropout"])
def test_one_of_several_results_of_a_call_comes_back(between: nn.Module):
    torch.manual_seed(0)
    model = Net(between)
    twin = copy.deepcopy(model)
    plan = planned_with(Move(least=0), model, 0.8)
    moved = [plan.graph.op[n].of for n in plan.program.counts if n.endswith(".decode")]
    assert any(len(plan.graph.op[name].outputs) > 1 for name in moved)
    assert not differences(twin, model, batch())


def test_two_steps_in_flight_do_not_share_places():
    """Forward twice before either backward: each has its own tickets."""
    torch.manual_seed(0)
    model, batches = Net(), [torch.randn(1024, 256) for _ in range(2)]
    twin = copy.deepcopy(model)
    planned_with(Move(least=0), model)
    for net in (model, twin):
        first, second = (net(one) for one in batches)
        first.backward()
        second.backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
