"""Written over means: nothing is allocated for it."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from lowtide.capture.forms import Form, written_over
from lowtide.measure.peak import measure_peak
from lowtide.rules.in_place import ELEMENTWISE

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
