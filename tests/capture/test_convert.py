"""What the captured graph says of storages, whatever fake tensors have seen before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Kind
from lowtide.ir.json import graph_hash
from tests.training import QUICK

pytestmark = pytest.mark.usefixtures("estimated")


class WritesIntoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) * 2
        y[:, 0] = 0.25
        y[1:2] *= 2
        return y.sin()


def test_capturing_twice_gives_the_same_graph():
    """PyTorch's cache of fake results forgets how large a storage is of which a result shows only a part."""
    model, args = WritesIntoParts(), (torch.randn(16, 8),)
    plans = [lowtide.fit(copy.deepcopy(model), args, budget="200%", **QUICK) for _ in range(2)]
    assert len({graph_hash(p.graph) for p in plans}) == 1


def test_a_written_part_is_a_copy_of_the_whole():
    plan = lowtide.fit(WritesIntoParts(), (torch.randn(16, 8),), budget="200%", **QUICK)
    graph = plan.graph
    for op in graph.ops:
        if op.target in (
            "aten.copy.default",
            "aten.select_scatter.default",
            "aten.slice_scatter.default",
        ):
            assert graph.value[graph.storage(op.outputs[0])].bytes == 16 * 8 * 4


@pytest.mark.parametrize("name", ["", "inner"])
def test_layers_have_the_names_of_the_users_modules(name: str):
    inner = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    model = nn.ModuleDict({"inner": inner})["inner"] if name else inner
    plan = lowtide.fit(model, (torch.randn(4, 8),), budget="200%", **QUICK)
    assert {o.layer for o in plan.graph.ops} <= {"", "0", "1"}


def test_gradients_of_parameters_are_called_gradients():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    graph = lowtide.fit(model, (torch.randn(4, 8),), budget="200%", **QUICK).graph
    made = [v for v in graph.values if v.kind is Kind.GRADIENT and graph.makers[v.name]]
    assert sum(v.bytes for v in made) == sum(p.nbytes for p in model.parameters())
