"""Do training loops of all sorts give the same numbers under the planner, within the budget, without knowing of it?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowtide.api import make_options
from lowtide.integrations.script import planner as planning
from lowtide.integrations.script.planner import Phase, Planner
from lowtide.integrations.script.trained import watching

Loop = Callable[[], list[torch.Tensor]]
"""Trains something from scratch; what it returns is compared."""


def net(width: int = 48, depth: int = 4) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(width, 8))


def batch(size: int = 1024, width: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, width), torch.randint(0, 8, (size,))


def planned(loop: Loop, budget: str | int = "75%") -> Planner:
    """The same loop twice, plain and planned."""
    torch.manual_seed(0)
    expected = loop()
    torch.manual_seed(0)
    said: list[str] = []
    planner = Planner(make_options(budget, seconds=2.0), said.append)
    planner.lines = said  # type: ignore[attr-defined]
    with watching(planner):
        try:
            found = loop()
        finally:
            planner.close()
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        assert torch.equal(one, other)
    return planner


def fits(planner: Planner) -> None:
    assert planner.phase is Phase.DONE
    assert planner.before is not None
    assert 0 < planner.after <= planner.plans[0].budget < planner.before
    assert planner.lines == []  # type: ignore[attr-defined]


def state(*modules: nn.Module) -> list[torch.Tensor]:
    return [t.clone() for m in modules for t in m.state_dict().values()]


def test_a_loss_outside_evaluation_between_and_a_smaller_last_batch() -> None:
    def loop() -> list[torch.Tensor]:
        model, criterion = net(), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        losses = []
        for size in (1024, 1024, 1024, 1024, 1024, 512, 1024):
            model.train()
            x, y = batch(size)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            model.eval()
            with torch.no_grad():
                losses.append(model(x).mean())
        return [*losses, *state(model)]

    fits(planned(loop))


def test_gradients_accumulate_and_the_optimizer_comes_late() -> None:
    def loop() -> list[torch.Tensor]:
        model, optimizer = net(), None
        for _ in range(6):
            for _ in range(2):
                x, y = batch()
                (F.cross_entropy(model(x), y) / 2).backward()
            optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return state(model)

    fits(planned(loop))


def test_two_models_one_backward_through_both() -> None:
    def loop() -> list[torch.Tensor]:
        maker, critic = net(), nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        optimizers = [torch.optim.Adam(m.parameters(), 1e-3) for m in (maker, critic)]
        for _ in range(7):
            x, _ = batch()
            made = maker(x)
            critic.zero_grad()
            (critic(torch.randn(1024, 8)).mean() - critic(made.detach()).mean()).backward()
            optimizers[1].step()
            maker.zero_grad()
            critic(made).mean().backward()
            optimizers[0].step()
        return state(maker, critic)

    planner = planned(loop, "80%")
    fits(planner)
    assert len(planner.plans[0].graph.segments) == 8


def test_a_small_model_that_comes_later_does_not_hide_a_large_one() -> None:
    def loop() -> list[torch.Tensor]:
        large, small = net(), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        for model, x in ((large, batch()[0]), (small, torch.randn(64, 8))):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(8):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return state(large, small)

    planner = planned(loop, "80%")
    assert planner.main_plan is not None
    assert planner.plans, "the small one is planned, too"
    assert planner.main_plan is planner.past[0]
    assert planner.plans[0].peak < planner.after <= planner.main_plan.budget


def test_a_model_whose_gradients_are_differentiated_again_runs_as_it_was() -> None:
    def loop() -> list[torch.Tensor]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = batch()[0].requires_grad_()
            out = model(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            optimizer.zero_grad()
            (out + slope.pow(2).mean()).backward()
            optimizer.step()
        return state(model)

    planner = planned(loop)
    (line,) = planner.lines  # type: ignore[attr-defined]
    assert "create_graph=True" in line
    assert not planner.plans


def test_an_optimizer_that_calls_the_model_itself() -> None:
    def loop() -> list[torch.Tensor]:
        model, (x, y) = net().eval(), batch()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return [optimizer.step(closure).detach() for _ in range(3)]

    assert planned(loop, 3 * 2**20).plans  # its history grows from step to step


def test_what_the_script_raises_is_its_own() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = net(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 7:
                raise ValueError("seven")
            return self.inner(x)

    def loop() -> list[torch.Tensor]:
        model, raised = Fails(), []
        for size in (64, 7, 64, 7):
            try:
                model(batch(size)[0]).sum().backward()
            except ValueError as error:
                raised.append(str(error))
        assert raised == ["seven", "seven"]
        return [p.grad for p in model.parameters()]

    planned(loop, "90%")


def test_a_budget_below_the_floor_stops_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "differentiates_twice", lambda: False)  # this file speaks of it
    model = net()
    before = state(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    planner = Planner(make_options(300_000, seconds=2.0), lambda words: None, exits=True)

    def loop() -> None:
        for _ in range(3):
            x, y = batch()
            try:
                F.cross_entropy(model(x), y).backward()
            except Exception:  # scripts do that
                continue
            optimizer.step()

    with watching(planner), pytest.raises(SystemExit) as stopped:
        loop()
    planner.close()
    assert stopped.value.code == 3
    assert planner.stopped is not None
    assert planner.stopped.floor > 300_000
    assert all(torch.equal(a, b) for a, b in zip(before, state(model)))


def test_an_output_that_nobody_uses_after_a_graph_break() -> None:
    """What follows the break has a graph of its own for it, which never runs backward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.body(x)
            loss = F.cross_entropy(logits, y)
            torch._dynamo.graph_break()
            return loss, logits.double()

    def loop() -> list[torch.Tensor]:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss, _ = model(*batch())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *state(model)]

    fits(planned(loop))
