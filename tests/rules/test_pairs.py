"""Every exact rule alone and with every other one: the same bits near the smallest peak each pair reaches.

A step is captured once with all rules; a pair's graph is that without the ops of the others, and with its own for nothing, so that they
are used.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.bench.ablation import only
from lowtide.errors import BudgetError
from lowtide.plan.plan import Plan
from lowtide.rules import DEFAULT_RULES, Exactness
from lowtide.rules.slices import Slices
from tests.training import QUICK, differences

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("estimated")]

EXACT = tuple(
    Slices(least=0) if r.name == "slices" else r
    for r in DEFAULT_RULES
    if r.exactness is Exactness.EXACT
)
NAMES = [r.name for r in EXACT]


class Words(nn.Module):
    """Attention by hand and a loss over a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 16)
        self.first, self.second = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.drop, self.head = nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 61)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        q, k, v = self.first(self.norm(x)).chunk(3, -1)
        weights = self.drop((q @ k.transpose(1, 2) / 4).softmax(-1))
        x = x + torch.relu(self.second(weights @ v))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def build(dtype: torch.dtype) -> tuple[nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Words().to(dtype), (torch.randint(61, (6, 13)),)


def near_the_floor(graph: Plan) -> Plan:
    budget = 1
    for more in (1.02, 1.1):
        try:
            return lowtide.plan(graph, budget, seconds=0.2)
        except BudgetError as error:
            budget = int(error.floor * more) + 64
    return lowtide.plan(graph, budget, seconds=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_same_bits(dtype: torch.dtype):
    model, args = build(dtype)
    captured = copy.deepcopy(model)
    everything = lowtide.fit(captured, args, budget="200%", rules=EXACT, **QUICK)
    sets = [(name,) for name in NAMES]
    if dtype is torch.float32:
        sets += combinations(NAMES, 2)
    used: set[str] = set()
    for names in sets:
        graph = only(everything.graph, names)
        if graph == everything.graph.as_captured():
            continue
        graph = graph.with_ops(replace(o, seconds=0.0) if o.rule else o for o in graph.ops)
        plan = near_the_floor(replace(everything, graph=graph))
        used |= {plan.graph.op[name].rule for name in plan.program.counts}
        planned = copy.deepcopy(model)
        lowtide.apply(planned, plan)
        assert differences(model, planned, args) == [], names
    assert len(used) > 1, "nothing of it was tried"
