"""A step that nobody runs is profiled all the same, marked as estimated, and near what a real one takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide
from lowtide.errors import OptionError
from lowtide.ir.graph import Kind
from lowtide.measure.peak import held_bytes, measure_peak
from lowtide.measure.step import Step
from lowtide.sim.timeline import KEPT


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.tied = nn.Linear(width, width, bias=False)
        self.tied.weight = self.layers[0].weight

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.tied(x) * scale


def test_it_is_near_a_real_step():
    model, args = Net(), (torch.randn(512, 64),)
    found = lowtide.profile(model, args, {"scale": 2.0}, loss=lambda y, _: y.sum(), fake=True)
    step = Step(model, args, {"scale": 2.0}, lambda y, _: y.sum())
    real = measure_peak(step, held_bytes(model, args))
    assert found.estimated
    assert found.peak == pytest.approx(real, rel=0.15)
    assert sum(row.bytes for row in found.at_peak) == found.peak
    assert {b.layer for b in found.blocks if b.kind == KEPT} >= {"layers.0", "layers.1"}
    assert {b.layer for b in found.blocks if b.kind == Kind.PARAMETER} >= {"layers.1"}
    assert str(found).startswith("estimated, no device\nNet: peak ~")


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_a_model_larger_than_this_machine(where: str, tmp_path: Path):
    with torch.device("meta") if where == "meta" else FakeTensorMode():
        model, args = Net(width=100_000), (torch.empty(1000, 100_000),)
        optimizer = torch.optim.Adam(model.parameters())
    found = lowtide.profile(model, args, optimizer=optimizer, fake=True)
    weights = sum(p.nbytes for p in model.parameters())
    assert found.peak > 3 * weights > 100 * 2**30
    loaded = lowtide.load(found.save(tmp_path / "large.profile.json"))
    assert loaded == found


def test_priced_from_another_device():
    args = (torch.randn(512, 64),)
    here, there = (lowtide.profile(Net(), args, fake=device) for device in ("cpu", "a100"))
    assert there.seconds < here.seconds
    assert there.environment["costs"] == "A100"
    with pytest.raises(OptionError, match="A100"):
        lowtide.profile(Net(), args, fake="abacus")
