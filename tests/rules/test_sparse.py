"""Activations without their zeros: what is offered, how much room is planned, and what a step does with it."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Op, Outside, Required, Segment, Value
from lowtide.kernels import sparse as kernel
from lowtide.measure import inputs
from lowtide.measure.peak import held_bytes, measure_peak
from lowtide.plan.plan import Plan
from lowtide.rules import DEFAULT_RULES, add_makers
from lowtide.rules.sparse import Sparse, packed_bytes, parts_needed, parts_of
from tests.training import QUICK, differences

ALLOWED = ("sparse",)
RULES = (Sparse(least=0),)


# What is offered.


def graph(maker: str = "aten.relu.default", after: str = "", spec: str = "f32[64, 160]") -> Graph:
    """x -> u -> `maker` -> y (-> `after` -> z), the last of which backward reads."""
    each = {"f32": 4, "bf16": 2, "f64": 8, "i64": 8}[spec.partition("[")[0]]
    names = ["x", "u", "y", "dy", "dx", *(["z"] if after else [])]
    values = [Value(n, each * 64 * 160, n, spec=spec) for n in names]
    read = "z" if after else "y"
    ops = [
        Op("sin", "aten.sin.default", ("x",), ("u",)),
        Op("made", maker, ("u",), ("y",)),
        *([Op("then", after, ("y",), ("z",))] if after else []),
        Op("back", "aten.mul.Tensor", ("dy", read), ("dx",), 1),
    ]
    outside = (Outside("x"), Outside("dy", 1, owned=False))
    segments = (Segment("forward"), Segment("backward"))
    made = Graph(tuple(values), tuple(ops), segments, outside, (Required("dx", 1),))
    check_graph(made)
    return made


def offered(of: Graph, allow: tuple[str, ...] = ALLOWED) -> Graph:
    with_makers = add_makers(of, RULES, allow)
    check_graph(with_makers)
    return with_makers


def test_the_makers_it_proposes():
    made = offered(graph())
    ops = {o.name: o for o in made.ops if o.rule}
    assert list(ops) == [f"y.sparse{n}.{way}" for n in range(1, 13) for way in ("encode", "decode")]
    there, back = ops["y.sparse9.encode"], ops["y.sparse9.decode"]
    assert (there.inputs, there.outputs, there.segment, there.of) == (("y",), ("y.sparse9",), 0, "made")  # fmt: skip
    assert (back.inputs, back.outputs, back.segment, back.of) == (("y.sparse9",), ("y",), 1, "made")
    size = made.value["y.sparse9"].bytes
    assert size == 64 * 160 // 8 + 4 * 64 * 160 * 9 // 16 == packed_bytes(64 * 160, 4, 9)
    assert parts_of("y.sparse9") == 9
    assert all(made.value[o.outputs[0]].bytes <= 0.8 * made.value["y"].bytes for o in ops.values() if o.name.endswith("encode"))  # fmt: skip


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (graph(spec="bf16[64, 160]"), 11),  # a bit weighs more beside sixteen
        (graph(spec="f64[64, 160]"), 12),
        (graph("aten.native_dropout.default"), 12),
        (graph(after="aten.max_pool2d_with_indices.default"), 12),
        (graph(after="aten.cat.default"), 12),
        (graph("aten.tanh.default"), 0),
        (graph(after="aten.tanh.default"), 0),
        (graph(spec="i64[64, 160]"), 0),
    ],
    ids=["half", "double", "dropout", "pool", "cat", "tanh", "behind tanh", "whole"],
)
def test_of_what_may_have_zeros(case: Graph, most: int):
    found = [parts_of(o.outputs[0]) for o in offered(case).ops if o.target == "lowtide.encode"]
    assert found == list(range(1, most + 1))


def test_nothing_without_leave():
    assert not [o for o in offered(graph(), allow=("move",)).ops if o.rule]
    assert any(rule.name == "sparse" for rule in DEFAULT_RULES)


def test_room_for_an_eighth_more_than_was_counted():
    assert parts_needed(0, 1600) == 1
    assert parts_needed(800, 1600) == 9
    assert parts_needed(801, 1600) == 10
    assert parts_needed(1600, 1600) == 18
    assert parts_needed(0, 0) == 1


def test_not_where_nothing_was_counted():
    """A graph from a file: how many zeros there are, it does not say."""
    plan = lowtide.plan(graph(), "1GiB", allow=ALLOWED, seconds=0.2)
    assert not any(o.rule == "sparse" for o in plan.graph.ops)


# What is counted.


class Noisy(nn.Module):
    """What its ReLUs made can only be kept: it cannot be made again without the noise, which is as large."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((8, 1, 1), 0.1) for _ in range(12))

    def forward(self, given: Tensor) -> Tensor:
        x = given
        for weight in self.weights:
            x = (x * weight + given + torch.randn_like(x)).relu()
        return x.mean()


def images(shift: float = 0.0) -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 4 * 8 * 64 * 64).reshape(4, 8, 64, 64) + shift,)


def fitted(model: nn.Module, batch: tuple[Tensor], **options: object) -> Plan:
    chosen = {"budget": "100%", "rules": RULES, "allow": ALLOWED, **QUICK, **options}
    return lowtide.fit(model, batch, **chosen)  # type: ignore[arg-type]


def rooms(plan: Plan) -> list[int]:
    return [parts_of(o.outputs[0]) for o in plan.graph.ops if o.target == "lowtide.encode"]


class Halved(nn.Module):
    """Of its inputs, those above zero are left, and wait for the weight's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 1, 1))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (self.drop(x.relu() + 0 * self.weight.sum()) * self.weight).sum()


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize(("shift", "room"), [(0.0, 5), (0.5, 7), (5.0, 9), (-5.0, 1)])
def test_the_size_with_room_for_what_the_batch_has(shift: float, room: int):
    """Half of the numbers above -`shift` are left by the dropout: with an eighth more, in sixteenths."""
    assert rooms(fitted(Halved(), images(shift))) == [room]


@pytest.mark.usefixtures("estimated")
def test_nothing_where_too_little_is_zero():
    assert rooms(fitted(Noisy(), images())) != []
    assert rooms(fitted(Noisy(), images(50.0))) == []


@pytest.mark.usefixtures("estimated")
def test_neither_batch_nor_generator_is_touched():
    batch = images()
    before, state = batch[0].clone(), torch.get_rng_state()
    fitted(Noisy(), batch)
    assert torch.equal(batch[0], before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("estimated")
def test_the_batch_is_not_held_on_to():
    model, batch = Noisy(), images()
    there = weakref.ref(batch[0])
    fitted(model, batch)
    model(*images()).backward()
    del batch
    gc.collect()
    assert there() is None


def test_what_is_timed_has_about_the_planned_zeros():
    x = torch.randn(50, 1000)
    (given, _) = inputs.with_zeros_as_planned(torch.ops.lowtide.without_zeros.default, (x, 9))
    assert 0.5 < kernel.nonzero(given) / given.numel() < 9 / 16
    fake = torch.empty(packed_bytes(50_000, 4, 9), dtype=torch.uint8)
    args = (fake, [50, 1000], [1000, 1], torch.float32)
    made = inputs.with_zeros_as_planned(torch.ops.lowtide.with_zeros.default, args)
    back = kernel.with_zeros(*made)
    assert 0.5 < kernel.nonzero(back) / back.numel() < 9 / 16


# A training step.


class Convolutions(nn.Module):
    """What each ReLU made is read by the next convolution's backward."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(5):
            parts += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*parts, nn.MaxPool2d(2), nn.Dropout(0.5), nn.Conv2d(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


def planned(model: nn.Module, batch: tuple[Tensor], share: float = 0.8) -> Plan:
    """A plan that uses the rule, as one would where its ops cost nothing."""
    first = fitted(copy.deepcopy(model), batch, budget="200%")
    ops = (replace(o, seconds=0.0 if o.rule else 1.0) for o in first.graph.ops)
    dear = replace(first, graph=first.graph.with_ops(ops))
    plan = lowtide.plan(dear, int(share * first.unplanned_peak), seconds=1.0)
    assert used(plan)
    lowtide.apply(model, plan)
    return plan


def used(plan: Plan) -> list[str]:
    return [n for n in plan.program.counts if n.endswith(".decode")]


def step_peak(model: nn.Module, batch: tuple[Tensor]) -> int:
    model(*batch).backward()
    model.zero_grad(set_to_none=True)
    return held_bytes(model, batch) + measure_peak(lambda: model(*batch).backward())


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize(("net", "share"), [(Noisy, 0.8), (Convolutions, 0.9)])
def test_a_step_has_the_same_bits_within_its_peak(net: type[nn.Module], share: float):
    model = net()
    twin = copy.deepcopy(model)
    plan = planned(model, images(), share)
    assert plan.exact
    assert "some without their zeros" in str(plan)
    assert step_peak(model, images()) <= plan.budget
    assert not differences(twin, model, images())


def test_a_budget_that_only_it_can_keep():
    """Verified on a real step. The rest of the budget goes to the dense tensors of one op."""
    torch.manual_seed(0)
    model = Noisy()
    twin = copy.deepcopy(model)
    with pytest.raises(lowtide.BudgetError):
        fitted(copy.deepcopy(model), images(), budget="80%", allow=(), seconds=1.0)
    plan = fitted(model, images(), budget="80%", seconds=1.0, verify=True)
    assert len(used(plan)) >= 5
    assert plan.exact
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert not differences(twin, model, images())


@pytest.mark.usefixtures("estimated")
def test_a_batch_with_fewer_zeros_than_planned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernel, "_told", set())
    model = Noisy()
    twin = copy.deepcopy(model)
    plan = planned(model, images())
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert not differences(twin, model, images())
        assert not caplog.records
        for _ in range(2):
            assert not differences(twin, model, images(50.0))
        assert step_peak(model, images(50.0)) > plan.budget, "or there was nothing to say"
    (said,) = {r.message for r in caplog.records}
    assert len(caplog.records) == 1, "once"
    assert "100% are not zero" in said
    assert "[4, 8, 64, 64]" in said


@pytest.mark.usefixtures("estimated")
def test_a_saved_plan_runs_without_counting(tmp_path: Path):
    model = Noisy()
    twin = copy.deepcopy(model)
    planned(copy.deepcopy(model), images()).save(tmp_path / "net.plan.json")
    plan = lowtide.load(tmp_path / "net.plan.json")
    assert isinstance(plan, Plan)
    assert used(plan)
    lowtide.apply(model, plan)
    assert not differences(twin, model, images())
