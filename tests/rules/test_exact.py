"""Masks, outputs, statistics, pools: what they offer makes the same bits, and less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.rules import DEFAULT_RULES
from lowtide.sim.memory import written_over
from lowtide.solve.gaps import DROP, HOLD, NEVER
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.training import QUICK, differences, fit_or_floor


class Net(nn.Module):
    """Activations whose outputs nobody else needs, between wide convolutions."""

    def __init__(
        self, activation: Callable[[], nn.Module], pool: bool = False, width: int = 8
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [nn.Conv2d(width if i else 3, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width)]
            layers += [activation(), nn.MaxPool2d(3, 1, 1) if pool else nn.Tanh()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


def images() -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 4 * 3 * 24 * 20).sin().reshape(4, 3, 24, 20),)


CASES: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: Net(nn.ReLU),
    "relu in place": lambda: Net(lambda: nn.ReLU(inplace=True)),
    "relu6 in place": lambda: Net(lambda: nn.ReLU6(inplace=True)),
    "leaky": lambda: Net(nn.LeakyReLU),
    "dropout": lambda: Net(lambda: nn.Dropout(0.4)),
    "pool": lambda: Net(nn.ReLU, pool=True),
    "wide": lambda: Net(nn.ReLU, width=37),
}


@pytest.mark.parametrize("budget", ["75%", "40%"])
@pytest.mark.parametrize("case", CASES)
def test_same_bits_within_the_budget(case: str, budget: str):
    torch.manual_seed(0)
    model = CASES[case]()
    twin = copy.deepcopy(model)
    plan = fit_or_floor(model, images(), budget, verify=True)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert not differences(twin, model, images())


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        ("relu", "mask"),
        ("leaky", "mask"),
        ("dropout", "mask"),
        ("relu6 in place", "from_output"),
        ("pool", "pool"),
        ("relu", "statistics"),
        ("relu", "channels"),
        ("wide", "channels"),
    ],
)
def test_every_program_with_the_rule_gives_the_same_bits(case: str, rule: str):
    """All ops in the rule's way, everything remade that can be: whether or not a planner would want it."""
    torch.manual_seed(0)
    model = CASES[case]()
    twin = copy.deepcopy(model)
    (one,) = (r for r in DEFAULT_RULES if r.name == rule)
    one = replace(one, least=0) if hasattr(one, "least") else one
    plan = lowtide.fit(model, images(), budget="100%", rules=(one,), seconds=0.2)
    assert any(op.rule == rule for op in plan.graph.ops), "nothing was offered"
    search = Search(make_problem(plan.graph))
    gaps, choice = search.problem.gaps, search.player.no_choice()
    choice[len(search.problem.storage_names) :] = 1
    for answer in (HOLD, DROP):
        state = gaps.start_state.copy()
        state[gaps.open & (gaps.end != NEVER)] = answer
        answers = search.player.play(state, choice)
        assert answers is not None
        program = search.program(answers)
        if rule == "channels":
            over = [name for step in written_over(plan.graph, program) for name in step if name]
            assert over, "nothing is written over"
        if answer == HOLD and rule != "statistics":
            assert any(plan.graph.op[n].rule == rule for step in program.steps for n in step)
        fresh = copy.deepcopy(twin)
        lowtide.apply(fresh, replace(plan, program=program))
        assert not differences(twin, fresh, images())


class Dropping(nn.Module):
    """Each layer reads what a dropout left of the one before it."""

    def __init__(self, p: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32, dtype=dtype) for _ in range(3))
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drop(layer(x).tanh())
        return x.square().mean()


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize("p", [0.1, 0.15, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_dropout_left_is_made_again_from_its_bits(p: float, dtype: torch.dtype):
    torch.manual_seed(0)
    model = Dropping(p, dtype)
    twin, given = copy.deepcopy(model), (torch.randn(33, 32, dtype=dtype),)
    rules = tuple(r for r in DEFAULT_RULES if r.name in ("mask", "replay"))
    plan = lowtide.fit(model, given, budget="100%", rules=rules, **QUICK)
    search = Search(make_problem(plan.graph))
    gaps = search.problem.gaps
    left = [search.problem.storage_index[o.outputs[0]] for o in plan.graph.captured if "dropout.d" in o.target]  # fmt: skip
    state = gaps.start_state.copy()
    state[gaps.open & (gaps.end != NEVER) & np.isin(gaps.storage, left)] = DROP
    choice = search.player.no_choice()
    for storage in left:
        makers = [search.problem.op_names[m] for m in search.problem.makers[storage]]
        choice[storage] = next(i for i, name in enumerate(makers) if name.endswith(".dropped"))
    answers = search.player.play(state, choice)
    assert answers is not None
    program = search.program(answers)
    assert sum(name.endswith(".dropped") for name in program.steps[1]) == 3
    lowtide.apply(model, replace(plan, program=program))
    assert not differences(twin, model, given)
