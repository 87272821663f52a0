"""Regions in slices: found by what depends on what, the same bits, and their inside never whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide
from lowtide.ir.graph import Graph, Op, Outside, Segment, Value
from lowtide.kernels.losses import picked, picked_loss
from lowtide.plan.plan import Plan
from lowtide.rules import DEFAULT_RULES
from lowtide.rules.slices import Slices, SummedSlices
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.training import differences


class Words(nn.Module):
    """A wide vocabulary behind a narrow layer."""

    def __init__(self, **loss: Any) -> None:
        super().__init__()
        self.inner, self.head, self.loss = nn.Linear(16, 16), nn.Linear(16, 512, bias=False), loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.inner(x)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), **self.loss)


class Additive(nn.Module):
    """Attention by a layer on every pair of a query and a key, whatever it may be called."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])
        return (self.v(pairs).squeeze(-1).softmax(-1) @ x).square().mean()


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return (scores.softmax(-1) @ x).square().mean()


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.first, self.body = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x)).square().mean()


def sentences(ignored: bool = False) -> tuple[Tensor, Tensor]:
    words = torch.arange(8 * 8).reshape(8, 8) * 7 % 512
    return torch.randn(8, 8, 16), torch.where(words % 3 == 0, -100, words) if ignored else words


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "words": (Words, sentences),
    "words, summed": (lambda: Words(reduction="sum"), sentences),
    "words, some ignored": (Words, lambda: sentences(ignored=True)),
    "additive attention": (Additive, lambda: (torch.randn(4, 24, 8),)),
    "attention by hand": (ByHand, lambda: (torch.randn(4, 64, 8),)),
    "convolutions": (Convolutions, lambda: (torch.randn(6, 3, 32, 32),)),
}


def all_in_slices(plan: Plan) -> Plan:
    search = Search(make_problem(plan.graph))
    choice = search.player.no_choice()
    choice[len(search.problem.storage_names) :] = 1
    answers = search.player.play(search.problem.gaps.start_state, choice)
    assert answers is not None
    return replace(plan, program=search.program(answers))


def sliced(plan: Plan) -> list[Op]:
    return [op for name in plan.program.counts if (op := plan.graph.op[name]).rule == "slices"]


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(case: str):
    torch.manual_seed(0)
    make, batch = CASES[case]
    model, args = make(), batch()
    plan = lowtide.fit(
        copy.deepcopy(model),
        args,
        budget="100%",
        rules=(Slices(least=0),),
        seconds=0.2,
        verify=False,
    )
    plan = all_in_slices(plan)
    assert sliced(plan)
    fresh = copy.deepcopy(model)
    lowtide.apply(fresh, plan)
    assert differences(model, fresh, args) == []


@pytest.mark.parametrize("case", ["words", "additive attention", "convolutions"])
def test_less_than_without(case: str):
    """With slices a step fits where it did not; measured, not only simulated."""
    torch.manual_seed(0)
    make, batch = CASES[case]
    model, args = make(), batch()
    without = tuple(r for r in DEFAULT_RULES if r.name != "slices")
    smallest = (*without, Slices(least=0))
    floors = []
    for rules in (without, smallest):
        with pytest.raises(lowtide.BudgetError) as refused:
            lowtide.fit(copy.deepcopy(model), args, budget="1%", rules=rules, seconds=2.0)
        floors.append(refused.value.floor)
    assert floors[1] < floors[0]
    fitted = copy.deepcopy(model)
    plan = lowtide.fit(fitted, args, budget=int(floors[1] * 1.1), rules=smallest, seconds=3.0)
    assert sliced(plan)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert differences(model, fitted, args) == []


def test_a_layer_on_rows_that_depend_on_each_other_is_not_cut():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(0))
    plan = lowtide.fit(
        model,
        (torch.randn(4, 3, 16, 16),),
        budget="100%",
        rules=(Slices(least=0),),
        seconds=0.2,
        verify=False,
    )
    offered = {op.of for op in plan.graph.ops if op.rule == "slices"}
    assert not any("batch_norm" in name for name in offered)


@pytest.mark.parametrize("reduction", [1, 2])
def test_a_loss_from_one_number_of_each_row(reduction: int):
    rows, target = torch.randn(1000, 7), torch.arange(1000) % 7
    target[::5] = -100
    expected = torch.ops.aten.nll_loss_forward.default(rows, target, None, reduction, -100)
    for one, other in zip(expected, picked_loss(picked(rows, target), target, reduction, -100)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_a_wrong_class_is_still_an_error(wrong: int):
    rows, target = torch.randn(4, 7), torch.tensor([0, wrong, 2, 3])
    with pytest.raises((IndexError, RuntimeError)):
        picked_loss(picked(rows, target), target, 1, -100)


@pytest.mark.parametrize("case", ["words", "convolutions"])
def test_sums_over_slices_are_rounded_otherwise_and_only_if_allowed(case: str):
    torch.manual_seed(0)
    make, batch = CASES[case]
    model, args = make(), batch()
    rules = (SummedSlices(least=0),)
    options: dict[str, Any] = {"rules": rules, "seconds": 0.2, "verify": False}
    exact = lowtide.fit(copy.deepcopy(model), args, budget="100%", **options)
    assert exact.exact
    assert not any(op.rule for op in exact.graph.ops)
    plan = lowtide.fit(copy.deepcopy(model), args, budget="100%", allow="rounding", **options)
    assert "gradient error not measured" in str(plan)
    assert not lowtide.plan(plan, "100%", seconds=0.2).exact, "made from the same makers"
    plan = all_in_slices(plan)
    assert not plan.exact
    assert any(plan.graph.op[name].rule == "summed" for name in plan.program.counts)
    fresh = copy.deepcopy(model)
    lowtide.apply(fresh, plan)
    for one in (model, fresh):
        one(*args).backward()
    for mine, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_read_by_another_name_is_not_written_over(turned: bool):
    """x and its transpose: a slice of x may go, but the transpose still reads all of it."""
    values = [Value(n, 2**20, n, spec="f32[64, 64]") for n in ("batch", "x", "y")]
    values.append(Value("turned", 0, "x", spec="f32[64, 64]"))
    kernel = "turned" if turned else "batch"
    graph = Graph(
        values=tuple(values),
        ops=(
            Op("x", "aten.relu.default", ("batch",), ("x",), rows=("batch",)),
            Op("turned", "aten.t.default", ("x",), ("turned",)),
            Op("y", "aten.convolution.default", ("x", kernel), ("y",), rows=("x",)),
        ),
        segments=(Segment("forward"),),
        outside=(Outside("batch"),),
    )
    offered = [p.ops[0] for p in Slices().propose(graph)]
    alone = [op for op in offered if "x" in op.inputs and op.of == "y"]
    assert alone
    assert all(op.over == (() if turned else ("x",)) for op in alone)


def test_a_loss_gradient_is_written_over_what_it_is_made_from():
    """The log-probabilities, which two ops of backward read: the gradient needs no room of its own."""
    make, batch = CASES["words"]
    plan = lowtide.fit(
        make(), batch(), budget="100%", rules=(Slices(least=0),), seconds=0.2, verify=False
    )
    name = "_log_softmax_backward_data"
    over = {o.over for o in plan.graph.ops if o.of == name and "_log_softmax" in o.inputs}
    assert over == {("_log_softmax",)}


def test_a_refusal_says_what_rounding_would_reach():
    rules = (Slices(least=0), SummedSlices(least=0))
    options: dict[str, Any] = {"rules": rules, "seconds": 4.0, "verify": False}
    with pytest.raises(lowtide.BudgetError) as refused:
        lowtide.fit(Words(), sentences(), budget="10%", **options)
    (line,) = (n for n in str(refused.value).splitlines() if n.strip().startswith("or "))
    assert 'allow=("rounding",) reaches' in line
    with pytest.raises(lowtide.BudgetError) as rounded:
        lowtide.fit(Words(), sentences(), budget="10%", allow="rounding", **options)
    assert rounded.value.floor < refused.value.floor
    assert "allow=" not in str(rounded.value)


def test_the_gradient_error_is_measured(tmp_path: Path):
    torch.manual_seed(0)
    rules = (Slices(least=0), SummedSlices(least=0))
    model, args = Words(), sentences()
    plan = lowtide.fit(model, args, budget="40%", allow="rounding", rules=rules, seconds=4.0)
    assert any(plan.graph.op[name].rule == "summed" for name in plan.program.counts)
    assert plan.gradient_error is not None
    assert 0 < plan.gradient_error < 1e-5
    assert f"gradient error measured {plan.gradient_error:.0e}" in str(plan)
    assert all(p.grad is None for p in model.parameters())
    saved = lowtide.load(plan.save(tmp_path / "plan.json"))
    assert isinstance(saved, Plan)
    assert saved.gradient_error == plan.gradient_error
    fresh = copy.deepcopy(model)
    lowtide.apply(fresh, saved)
    assert differences(model, fresh, args) != []
    exact = lowtide.fit(copy.deepcopy(model), args, budget="200%", seconds=0.2)
    assert exact.gradient_error is None
