"""Does `--verify` see a planned module that gives other numbers, and nothing in one that does not?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lowtide.api import make_options
from lowtide.errors import DifferenceError
from lowtide.integrations.script.planner import Planner
from lowtide.integrations.script.trained import Call, watching
from lowtide.integrations.script.verify import Verifier


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.last, self.drop = nn.Linear(16, 4), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.drop(self.norm(self.first(x)).relu())
        return {"y": self.last(y), "mean": y.mean()}


def call_of(model: nn.Module, through: Callable[..., object]) -> Call:
    model._compiled_call_impl = through
    return Call(model, 0, True, (torch.randn(8, 16, requires_grad=True),))


def test_the_same_code_has_the_same_bits_and_leaves_no_trace() -> None:
    model = Net()
    call = call_of(model, model._call_impl)
    before, state = [b.clone() for b in model.buffers()], torch.get_rng_state()
    through = model._compiled_call_impl
    verifier = Verifier(2)
    for _ in range(3):
        verifier.compare(call, exact=True)
    assert (verifier.compared, verifier.error) == (2, 0.0)
    assert "2 planned calls gave the same bits" in verifier.words()
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert call.args[0].grad is None
    assert model._compiled_call_impl is through


@pytest.mark.parametrize("what", ["output", "gradient", "buffer"])
def test_a_wrong_bit_is_named(what: str) -> None:
    model = Net()

    def wrong(x: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = model._call_impl(x)
        if what == "output":
            found["y"] = found["y"] + 1e-6
        elif what == "gradient":
            found["y"].register_hook(lambda g: g * (1 + 1e-6))
        else:
            model.norm.running_mean.data += 1e-6
        return found

    call = call_of(model, wrong)
    with pytest.raises(DifferenceError, match=f"F061 the planned Net .*{what}"):
        Verifier(1).compare(call, exact=True)
    tolerant = Verifier(1)
    tolerant.compare(call, exact=False)
    assert 0 < tolerant.error < 0.1  # of what rounding leaves of a gradient that is zero on paper
    assert "relative error" in tolerant.words()


def test_a_training_loop_is_verified_and_trains_as_without() -> None:
    def loop() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(9):
            optimizer.zero_grad()
            found = model(torch.randn(4096, 16))
            (found["y"].square().mean() + found["mean"]).backward()
            optimizer.step()
        return [t.clone() for t in model.state_dict().values()]

    expected = loop()
    planner = Planner(make_options("80%", seconds=2.0), print, verify=2)
    with watching(planner):
        try:
            found = loop()
        finally:
            planner.close()
    assert (planner.verifier.compared, planner.verifier.error) == (2, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
