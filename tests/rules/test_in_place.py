"""Written over means: nothing is allocated for it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn

import lowtide
from lowtide.capture.forms import Form, written_over
from lowtide.measure.peak import measure_peak
from lowtide.rules.in_place import ELEMENTWISE, InPlace
from lowtide.sim.memory import written_over as places

NUMBERS = {"min_val": -1.0, "max_val": 1.0, "negative_slope": 0.1, "threshold": 0.0, "other": 2.0}


@pytest.mark.parametrize("target", sorted(ELEMENTWISE))
def test_an_op_written_over_its_input_allocates_nothing(target: str):
    _, name, overload = target.split(".")
    op = getattr(getattr(torch.ops.aten, name), overload)
    tensors: dict[fx.Node, torch.Tensor] = {}
    graph, args = fx.Graph(), []
    for argument in op._schema.arguments:
        if isinstance(argument.type, torch.TensorType):
            node = graph.placeholder(argument.name)
            tensors[node] = torch.rand(1000, 1000)
            args.append(node)
        elif not argument.has_default_value():
            args.append(NUMBERS.get(argument.name, False))
    first = next(iter(tensors))
    copies = {node: tensor.clone() for node, tensor in tensors.items()}
    expected = Form(op, tuple(args), {}).call(copies.__getitem__)
    over = written_over(Form(op, tuple(args), {}), first)
    found: list[torch.Tensor] = []
    with torch.no_grad():
        peak = measure_peak(lambda: found.append(over.call(tensors.__getitem__)))
    assert peak < 4096
    assert torch.equal(found[0], expected)
    assert found[0].data_ptr() == tensors[first].data_ptr()


class Product(nn.Module):
    """Its backward can write a gradient over either factor, which forward saved."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return (self.left(x) * self.right(x)).sum()


def test_what_forward_saved_is_written_over_unless_it_is_kept_for_another_backward():
    torch.manual_seed(0)
    plain, batch = Product(), torch.randn(512, 64)
    fitted = copy.deepcopy(plain)
    plan = lowtide.fit(fitted, (batch,), budget="100%", rules=(InPlace(),), seconds=0.2)
    saved = {name for op in plan.graph.ops if op.segment == 0 for name in op.outputs}
    assert saved & set(places(plan.graph, plan.program)[1])
    found = []
    for model in (plain, fitted):
        loss = model(batch)
        for keep in (True, True, False):
            model.zero_grad()
            loss.backward(retain_graph=keep)
            found.append([p.grad for p in model.parameters()])
    for gradients in found[1:]:
        assert all(map(torch.equal, gradients, found[0]))  # type: ignore[arg-type]
