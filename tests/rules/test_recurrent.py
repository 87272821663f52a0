"""LSTM layers by our kernel: proposed beside torch's, used where that helps, and said."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.kernels import rnn_fused
from lowtide.rules import DEFAULT_RULES

pytestmark = pytest.mark.skipif(
    not rnn_fused.supports(torch.zeros(1, 1, 1), None), reason="torch has no MKL here"
)


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(50, 48), nn.LSTM(48, 48, **options)
        self.out = nn.Linear(96 if self.rnn.bidirectional else 48, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        y, (h, c) = self.rnn(self.words(tokens))
        loss = nn.functional.cross_entropy(self.out(y).flatten(0, 1), tokens.flatten())
        return loss + h.square().mean() + c.square().mean()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def gradients(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(tokens).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2}, {"bidirectional": True, "batch_first": True}],
    ids=["two layers", "both directions"],
)
def test_a_tight_budget_uses_it(options: dict[str, Any]) -> None:
    model, tokens = Words(**options), torch.randint(0, 50, (40, 32))
    plain = copy.deepcopy(model)
    plan = lowtide.fit(model, (tokens,), budget="45%", seconds=5)
    assert plan.other_kernels
    assert not plan.exact
    assert plan.gradient_error is not None
    assert plan.gradient_error < 1e-5
    assert "by another kernel" in str(plan)
    for one, other in zip(gradients(model, tokens), gradients(plain, tokens), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_without_the_rule_the_bits_are_torchs() -> None:
    model, tokens = Words(num_layers=2), torch.randint(0, 50, (40, 32))
    plain = copy.deepcopy(model)
    rules = [rule for rule in DEFAULT_RULES if rule.name != "recurrent"]
    plan = lowtide.fit(model, (tokens,), budget="85%", seconds=5, rules=rules)
    assert plan.exact
    assert not plan.other_kernels
    for one, other in zip(gradients(model, tokens), gradients(plain, tokens), strict=True):
        assert torch.equal(one, other)


def test_a_saved_plan_says_it_too(tmp_path: Path) -> None:
    model, tokens = Words(num_layers=2), torch.randint(0, 50, (40, 32))
    plan = lowtide.fit(model, (tokens,), budget="45%", seconds=5)
    loaded = lowtide.load(plan.save(tmp_path / "words.plan.json"))
    assert isinstance(loaded, lowtide.Plan)
    assert loaded.other_kernels == plan.other_kernels
    torch._dynamo.reset()
    again = Words(num_layers=2)
    again.load_state_dict(model.state_dict())
    lowtide.apply(again, loaded)
    for one, other in zip(gradients(again, tokens), gradients(model, tokens), strict=True):
        assert torch.equal(one, other)
