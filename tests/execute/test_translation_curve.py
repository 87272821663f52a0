"""A small translator learns to reverse its input: the same losses with and without a plan, to the bit, in exact mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.bench.models import Translator
from lowtide.rules import DEFAULT_RULES, Exactness

pytestmark = pytest.mark.slow
WORDS, LENGTH, BATCH, STEPS = 12, 5, 16, 40


def reversed_words(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    source = torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator)
    start = torch.zeros(BATCH, 1, dtype=torch.long)
    return source, torch.cat([start, source.flip(1)], 1)


def losses(model: nn.Module) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    found = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(*reversed_words(number))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_same_curve_with_and_without_a_plan() -> None:
    torch.manual_seed(0)
    plain = Translator(WORDS, 24)
    planned = copy.deepcopy(plain)
    rules = [rule for rule in DEFAULT_RULES if rule.exactness is Exactness.EXACT]
    plan = lowtide.fit(planned, reversed_words(0), budget="80%", rules=rules, seconds=1.0)
    assert plan.exact
    assert plan.recomputed
    wanted = losses(plain)
    assert wanted[-1] < 0.8 * wanted[0]
    assert losses(planned) == wanted
