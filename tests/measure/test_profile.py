"""A profile adds up to what the allocator says, names who made what, and leaves everything as it was found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.errors import LowtideError, OptionError
from lowtide.ir.graph import Kind
from lowtide.measure.observe import Observation
from lowtide.measure.peak import held_bytes, measure_peak
from lowtide.measure.profiling import profile_of
from lowtide.measure.step import Step
from lowtide.plan.profile import ENCODED, Profile
from lowtide.rules import DEFAULT_RULES
from lowtide.rules.masks import Masks
from lowtide.sim.timeline import KEPT, WORKSPACE
from tests.training import QUICK

SLICES = [rule for rule in DEFAULT_RULES if rule.name == "slices"]
HERE = Path(__file__).name


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        x = self.drop(self.norm(x))
        return self.conv(x.view(-1, 4, 64)).pow(2).mean()


def batch() -> tuple[Tensor]:
    return (torch.randn(256, 64),)


def profile(model: nn.Module, args: Any, **options: Any) -> Profile:
    return lowtide.profile(model, args, **{"graph": False, **options})


def true_peak(model: nn.Module, args: tuple[Tensor]) -> int:
    model.zero_grad(set_to_none=True)
    peak = measure_peak(Step(model, args, {}, None), held_bytes(model, args))
    model.zero_grad(set_to_none=True)
    return peak


def test_every_byte_of_the_peak_is_somebodys():
    model, args = Net(), batch()
    found = profile(model, args)
    assert found.peak == true_peak(model, args)
    assert sum(row.bytes for row in found.at_peak) == found.peak
    assert found.other_share == 0.0
    assert Kind.OTHER not in found.by_kind
    assert max(size for _, size in found.points) == found.peak
    assert [name for name, _ in found.phases] == ["forward", "backward"]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x + 1)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        return 2 * gradient + 0 * saved


class Unusual(nn.Module):
    """A recurrent layer, checkpoints of both kinds, autocast, a function of its own, sparse gradients, writing in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32, sparse=True)
        self.rnn = nn.LSTM(32, 32)
        self.inner = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, words: Tensor) -> Tensor:
        x, _ = self.rnn(self.table(words))
        x = checkpoint(self.inner, x, use_reentrant=False)
        x = checkpoint(self.inner, x, use_reentrant=True)
        with torch.autocast("cpu"):
            x = self.inner(x)
        return Doubled.apply(x.float()).relu_().sum()


def test_unusual_steps_add_up_too():
    model, args = Unusual(), (torch.randint(0, 50, (12, 40)),)
    model(*args).backward()  # gradients are there already, one of them sparse
    found = profile(model, args)
    assert found.peak == true_peak(model, args)
    assert sum(row.bytes for row in found.at_peak) == found.peak
    assert Kind.OTHER not in found.by_kind
    assert {"rnn", "inner.0", "table"} <= {b.layer for b in found.blocks}


def test_blocks_say_layer_op_and_line():
    found = profile(Net(), batch())
    size = 256 * 64 * 4
    kept = {(b.layer, b.op) for b in found.blocks if b.kind == KEPT and b.bytes >= size}
    assert ("", "aten.relu") in kept
    assert ("conv", "aten.convolution") in kept
    assert ("drop", "aten.dropout") in kept
    line = Net.forward.__code__.co_firstlineno
    lines = {b.source for b in found.blocks if b.op == "aten.relu"}
    assert lines == {f"{HERE}:{line + 2}"}
    gradients = {b.layer for b in found.blocks if b.kind == Kind.GRADIENT}
    assert gradients == {"layers.0", "layers.1", "layers.2", "conv", "norm"}
    backward = [b for b in found.blocks if b.op == "aten.threshold_backward"]
    assert {b.source for b in backward} == {f"{HERE}:{line + 2}"}
    assert {b.kind for b in backward} == {Kind.TEMPORARY}
    held = {b.kind for b in found.blocks if b.start == 0.0}
    assert held == {Kind.PARAMETER, Kind.BUFFER, Kind.BATCH}


def test_a_workspace_is_told_from_an_output():
    model = nn.Conv2d(8, 8, 3)
    found = profile(model, (torch.randn(4, 8, 32, 32),), loss=lambda out, _: out.mean())
    assert any(b.kind == WORKSPACE and "convolution" in b.op for b in found.blocks)


def test_the_optimizers_update_is_seen_and_undone():
    model, args = Net(), batch()
    optimizer = torch.optim.Adam(model.parameters())
    before = copy.deepcopy(model.state_dict())
    found = profile(model, args, optimizer=optimizer, steps=2)
    state = [b for b in found.blocks if b.kind == Kind.OPTIMIZER]
    weights = sum(p.nbytes for p in model.parameters())
    assert 2 * weights <= sum(b.bytes for b in state) <= 2 * weights + 1000
    assert {b.layer for b in state} == {"layers.0", "layers.1", "layers.2", "conv", "norm"}
    assert [name for name, _ in found.phases] == ["forward", "backward", "optimizer"]
    assert len(found.peaks) == 2
    assert found.peaks[1] >= found.peaks[0] + 2 * weights - 1000
    assert found.peak == found.peaks[1]
    assert not optimizer.state
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_optimizers_state_is_put_back():
    model, args = Net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(*args).backward()
    optimizer.step()
    gradients = [p.grad.clone() for p in model.parameters()]
    before = copy.deepcopy(optimizer.state_dict())
    generator = torch.get_rng_state()
    found = profile(model, args, optimizer=optimizer)
    assert any(b.kind == Kind.OPTIMIZER and b.start == 0.0 for b in found.blocks)
    after = optimizer.state_dict()
    for key, state in before["state"].items():
        assert torch.equal(state["momentum_buffer"], after["state"][key]["momentum_buffer"])
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), generator)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_grows_over_steps_shows():
    hoard: list[Tensor] = []

    class Leaking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            hoard.append(torch.ones(10_000))
            return super().forward(x).sum()

    found = profile(Leaking(8, 8), (torch.randn(4, 8),), steps=3)
    assert [b - a for a, b in zip(found.peaks, found.peaks[1:])] == [40_000, 40_000]
    assert "peaks of 3 steps" in str(found)


def test_a_users_own_loop_can_be_observed():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Observation({"": model}) as seen:
        for _ in range(2):
            seen.step()
            optimizer.zero_grad()
            fresh = (torch.randn(256, 64),)
            model(*fresh).backward()
            optimizer.step()
    found = profile_of(seen, "Net")
    assert found.other_share < 0.001
    (given,) = [b for b in found.blocks if b.kind == Kind.BATCH and b.start > 0]
    assert given.bytes == fresh[0].nbytes
    gradients = sum(p.nbytes for p in model.parameters())
    assert found.peaks[1] <= found.peaks[0] + gradients


def test_gradients_that_are_released_before_the_step_are_not_counted():
    model, args = Net(), batch()
    model(*args).backward()
    with Observation({"": model}, args) as seen:
        seen.step()
        model.zero_grad()
        Step(model, args, {}, None)()
    assert profile_of(seen, "Net").peak == true_peak(model, args)


@pytest.mark.parametrize("compiled", [lambda m: torch.compile(m, backend="aot_eager"), None])
def test_compiled_modules(compiled: Callable[[nn.Module], nn.Module] | None):
    model, args = Net(), batch()
    if compiled is None:
        model.compile(backend="aot_eager")
    found = profile(compiled(model) if compiled else model, args)
    assert found.model == "Net"
    assert found.other_share == 0.0
    assert {b.layer for b in found.blocks if b.kind == Kind.GRADIENT} >= {"layers.0", "conv"}


@pytest.mark.usefixtures("estimated")
def test_a_fitted_module_shows_what_its_plan_keeps():
    model = nn.Sequential(
        *(m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)))
    )
    args = (torch.randn(512, 64),)
    plan = lowtide.fit(model, args, budget="80%", rules=(Masks(), *SLICES), **QUICK)
    found = lowtide.profile(model, args)
    assert found.peak == true_peak(model, args)
    assert found.graph == plan.graph
    packs = [b for b in found.blocks if b.op == "lowtide.pack_above" and b.kind != WORKSPACE]
    used = [n for n in plan.program.counts if n.endswith(".pack")]
    assert len(packs) == len(used)
    assert all(b.kind == ENCODED and b.layer for b in packs)
    layers = {b.layer for b in found.blocks if b.kind == KEPT and b.bytes > 1000}
    assert layers
    assert layers <= {str(i) for i in range(12)} | {""}
    assert found.other_share == 0.0


@pytest.mark.usefixtures("estimated")
def test_the_step_is_captured_for_planning(tmp_path: Path):
    model, args = Net(), batch()
    found = lowtide.profile(model, args)
    assert model._compiled_call_impl is None
    plan = lowtide.plan(lowtide.load(found.save(tmp_path / "net.profile.json")), "90%", seconds=0.5)
    assert 0.5 * found.peak < plan.unplanned_peak < 1.5 * found.peak
    assert plan.peak <= plan.budget


def test_what_cannot_be_captured_is_profiled_all_the_same():
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            (slope,) = torch.autograd.grad(super().forward(x).sum(), self.weight, create_graph=True)
            return slope.pow(2).sum()

    found = lowtide.profile(Twice(4, 4), (torch.randn(2, 4, requires_grad=True),))
    assert found.graph is None
    assert "cannot be planned: " in str(found)


def test_wrong_calls():
    with pytest.raises(OptionError, match="takes an nn"):
        lowtide.profile(print, ())
    with pytest.raises(OptionError, match="steps=0"):
        lowtide.profile(Net(), batch(), steps=0)
    with torch.profiler.profile(), pytest.raises(LowtideError, match="profiler runs"):
        lowtide.profile(Net(), batch())


def test_sparse_gradients_of_the_step_before():
    model, args = Unusual(), (torch.randint(0, 50, (12, 40)),)
    model(*args).backward()
    with Observation({"": model}, args) as seen:
        seen.step()
        model.zero_grad()
        Step(model, args, {}, None)()
    assert profile_of(seen, "Unusual").peak == true_peak(model, args)
