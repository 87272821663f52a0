"""A planned step leaves the same bits as an unplanned one: random modules at several budgets.

Each module is captured once; then plans for three budgets are made from the captured graph and applied to copies.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from torch import Tensor, nn

import lowtide
from lowtide.plan.plan import Plan
from lowtide.rules import DEFAULT_RULES
from lowtide.rules.slices import Slices
from tests.execute import modules
from tests.training import QUICK, differences

pytestmark = pytest.mark.usefixtures("estimated")
RULES = (*(r for r in DEFAULT_RULES if r.name != "slices"), Slices(least=0))
"""Everything, for modules this small."""
FEW = settings(
    max_examples=8,
    phases=(
        Phase.explicit,
        Phase.generate,
    ),  # shrinking would compile for minutes; a failing tuple is short
    suppress_health_check=list(HealthCheck),
)


def budgets(plan: Plan) -> list[int]:
    """85% and 65% of the unplanned peak where that is feasible, and just above the floor."""
    least = int(plan.floor * 1.02) + 64
    wanted = [int(plan.unplanned_peak * 0.85), int(plan.unplanned_peak * 0.65), least]
    return sorted({b for b in wanted if b >= least}, reverse=True)


def check(model: nn.Module, args: tuple[Tensor, ...]) -> list[Plan]:
    """Plan for all budgets; every step must leave the bits of the plain model's."""
    captured = copy.deepcopy(model)
    first = lowtide.fit(captured, args, budget="200%", rules=RULES, **QUICK)
    assert differences(model, captured, args) == [], "nothing planned"
    plans = []
    for budget in budgets(first):
        plan = lowtide.plan(first, budget, seconds=0.2)
        assert plan.peak <= budget
        planned = copy.deepcopy(model)
        lowtide.apply(planned, plan)
        assert differences(model, planned, args) == [], f"budget {budget}: {plan.recomputed}"
        plans.append(plan)
    return plans


@FEW
@given(modules.image_names())
def test_image_models(names: tuple[str, ...]):
    check(*modules.build("image", names))


@FEW
@given(modules.sequence_names())
def test_sequence_models(names: tuple[str, ...]):
    check(*modules.build("sequence", names))


@pytest.mark.parametrize("name", sorted(modules.IMAGE_BLOCKS))
@pytest.mark.slow
def test_each_image_block(name: str):
    check(*modules.build("image", ("conv", name, "conv", name)))


@pytest.mark.parametrize("name", sorted(modules.SEQUENCE_BLOCKS))
@pytest.mark.slow
def test_each_sequence_block(name: str):
    check(*modules.build("sequence", ("linear", name, "linear", name)))
