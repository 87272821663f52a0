"""What a model and its optimizer hold, before and after the first update."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from lowtide.measure.memory import held_by_kind

BATCH = (torch.randn(4, 8),)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Linear(64, 8))


def optimizers() -> list[Any]:
    return [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        torch.optim.Adam,
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
        torch.optim.Adadelta,
        torch.optim.NAdam,
    ]


@pytest.mark.parametrize("make", optimizers())
def test_predicted_state_is_what_the_first_step_makes(make: Any) -> None:
    model = net()
    optimizer = make(model.parameters())
    predicted = held_by_kind(model, BATCH, optimizer).get("optimizer state", 0)
    assert not optimizer.state or type(optimizer).__name__ == "Adagrad"
    model(*BATCH).sum().backward()
    optimizer.step()
    made = held_by_kind(model, BATCH, optimizer).get("optimizer state", 0)
    counters = 64 * len(list(model.parameters()))  # step counts and the like
    assert predicted <= made <= predicted + counters


def test_groups_with_options_of_their_own() -> None:
    model = net()
    first, _, last = model
    optimizer = torch.optim.SGD(
        [{"params": first.parameters(), "momentum": 0.9}, {"params": last.parameters()}], 0.1
    )
    size = sum(p.nbytes for p in first.parameters())
    assert held_by_kind(model, BATCH, optimizer)["optimizer state"] == size


def test_frozen_parameters_have_no_state_and_half_precision_has_less() -> None:
    model = net()
    model[0].requires_grad_(False)
    model[2].to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert held_by_kind(model, BATCH, optimizer)["optimizer state"] == size


def test_an_optimizer_that_needs_a_closure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters())
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert "optimizer state" not in held_by_kind(model, BATCH, optimizer)
    assert "LBFGS is not counted before its first step" in caplog.text
    assert not optimizer.state


def test_nothing_is_changed_by_predicting() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    held_by_kind(model, BATCH, optimizer)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert torch.equal(state, torch.get_rng_state())


def test_gradients_are_the_steps_own() -> None:
    model = net()
    without = held_by_kind(model, BATCH, None)
    model(*BATCH).sum().backward()
    assert held_by_kind(model, BATCH, None) == without
