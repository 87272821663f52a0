"""Batch norm and leaky ReLU the other way round: what is offered, what the kernels give, and what near-zero weights do."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.kernels import inversion
from lowtide.kernels.inversion import (
    gradients_from_output,
    gradients_from_output_by_channels,
    input_from_output,
    lost,
    spared,
)
from lowtide.plan.plan import Plan
from lowtide.rules import DEFAULT_RULES, add_makers
from lowtide.rules.inverted import INVERTED, SPARED, Inverted
from lowtide.solve.gaps import DROP, HOLD, NEVER
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.training import QUICK

ALLOWED = ("rounding",)
RULES = (Inverted(least=0),)
NORM = "aten._native_batch_norm_legit_functional.default"
BACKWARD = "aten.native_batch_norm_backward.default"
LEAKY = "aten.leaky_relu.default"


# What is offered.


def graph(norm: str = NORM, spec: str = "f32[2, 64, 5]", twice: bool = False) -> Graph:
    """x -> u -> batch norm -> y -> leaky ReLU -> z, and back; `twice`: something else needs u in backward, too."""
    names = ["x", "u", "y", "z", "dz", "dy", "du", "mean", "rstd", "weight", "bias", "dw", "db"]
    sizes = {n: f"f32[{64}]" if n in names[7:] else spec for n in names}
    values = [Value(n, 256 if n in names[7:] else 2560, n, Kind.ACTIVATION, spec=sizes[n]) for n in names]  # fmt: skip
    ops = [
        Op("sin", "aten.sin.default", ("x",), ("u",)),
        Op("norm", norm, ("u", "weight", "bias"), ("y", "mean", "rstd")),
        Op("leaky", LEAKY, ("y",), ("z",)),
        Op("leaky_back", "aten.leaky_relu_backward.default", ("dz", "y"), ("dy",), 1),
        Op("norm_back", BACKWARD, ("dy", "u", "weight", "mean", "rstd"), ("du", "dw", "db"), 1),
    ]
    required = [Required("z", 0), *(Required(n, 1) for n in ("du", "dw", "db"))]
    if twice:
        values.append(Value("dx", 2560, "dx", spec=spec))
        ops.append(Op("cos", "aten.mul.Tensor", ("du", "u"), ("dx",), 1))
        required.append(Required("dx", 1))
    outside = [Outside(n) for n in ("x", "weight", "bias")]
    outside.append(Outside("dz", 1, owned=False))
    segments = (Segment("forward"), Segment("backward"))
    made = Graph(tuple(values), tuple(ops), segments, tuple(outside), tuple(required))
    check_graph(made)
    return made


def offered(of: Graph, allow: tuple[str, ...] = ALLOWED, rule: Inverted = RULES[0]) -> list[Op]:
    with_makers = add_makers(of, (rule,), allow)
    check_graph(with_makers)
    return [o for o in with_makers.ops if o.rule]


def test_the_makers_it_proposes():
    ops = {o.name: o for o in offered(graph())}
    assert list(ops) == ["norm.spare", "leaky.inverted", "norm_back.inverted", "norm_back.inverted.channels"]  # fmt: skip
    spare = ops["norm.spare"]
    assert (spare.target, spare.of, spare.segment) == (SPARED, "norm", 0)
    assert spare.inputs == ("u", "weight", "bias", "rstd")
    undone = ops["leaky.inverted"]
    assert (undone.target, undone.inputs, undone.outputs) == (INVERTED, ("z",), ("y",))
    assert (undone.of, undone.segment) == ("norm", 1)
    assert undone.over == (), "the caller has it"
    back = ops["norm_back.inverted"]
    assert back.inputs == ("dy", "y", "weight", "bias", "mean", "rstd", "norm.spared")
    assert back.outputs == ("du", "dw", "db")
    assert ops["norm_back.inverted.channels"].over == ("dy",)


def test_room_is_planned_for_one_channel_in_thirty_two():
    value = add_makers(graph(), RULES, ALLOWED).value["norm.spared"]
    assert value.spec == "f32[2, 2, 5]"
    assert value.bytes == 2 * 2 * 5 * 4


def test_the_input_itself_where_something_else_reads_it():
    ops = {o.name: o for o in offered(graph(twice=True))}
    again = ops["norm.inverted"]
    assert again.inputs == ("y", "weight", "bias", "mean", "rstd", "norm.spared")
    assert (again.outputs, again.of, again.target) == (("u",), "sin", INVERTED)
    assert again.over == ("y",)


@pytest.mark.parametrize(
    ("case", "left"),
    [
        (graph(spec="bf16[2, 64, 5]"), []),
        (graph(norm="aten.native_layer_norm.default"), ["leaky.inverted"]),
    ],
    ids=["half precision", "no batch norm"],
)
def test_what_is_left_alone(case: Graph, left: list[str]):
    assert [o.name for o in offered(case)] == left


def test_not_behind_what_keeps_only_bits_of_it():
    case = graph()
    relu = case.with_ops(
        replace(o, target="aten.hardtanh.default") if o.name == "leaky"
        else replace(o, target="aten.hardtanh_backward.default") if o.name == "leaky_back"
        else o
        for o in case.ops
    )  # fmt: skip
    assert not offered(relu)


def test_small_gradients_are_not_made_by_channels():
    assert not any(o.name.endswith(".channels") for o in offered(graph(), rule=Inverted()))


def test_nothing_without_leave():
    assert not offered(graph(), allow=())
    assert not offered(graph(), allow=("lossy",))


# The kernels.

SHAPES = [(3, 5, 7, 11), (2, 37, 3, 5), (4, 16, 9), (33, 8), (2, 4, 3, 3, 5)]
LAYOUTS = [torch.contiguous_format, torch.channels_last]


def normed(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, affine: bool):
    x = torch.randn(shape, dtype=dtype) * 3 + 2
    if layout is torch.channels_last:
        if len(shape) != 4:
            pytest.skip("has four dimensions")
        x = x.contiguous(memory_format=layout)
    weight = torch.rand(shape[1], dtype=dtype) + 0.5 if affine else None
    bias = torch.randn(shape[1], dtype=dtype) if affine else None
    if weight is not None and bias is not None:
        weight[1], weight[2], bias[0] = 0.0, -1e-9, 1.0
        weight[3:] *= -1
        x[:, 0] = 1.5 + 1e-5 * torch.randn_like(x[:, 0])
    made = torch.ops.aten.native_batch_norm.default(x, weight, bias, None, None, True, 0.1, 1e-5)
    return x, weight, bias, *made


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_the_kernels_give_what_the_input_gives(
    shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format, affine: bool
):
    """Among the channels one has weight zero, one almost, and one hardly varies."""
    x, weight, bias, y, mean, rstd = normed(shape, dtype, layout, affine)
    kept = spared(x, weight, bias, rstd, 1e-5)
    assert kept.shape[1] == (3 if affine else 0)
    most = 1e-5 if dtype is torch.float32 else 1e-13
    numbers = (y, weight, bias, mean, rstd, kept, 1e-5)
    again = input_from_output(*numbers)
    assert off(again, x) < most
    assert again.stride() == x.stride()
    dy, mask = torch.randn_like(y), [True, affine, affine]
    expected = torch.ops.aten.native_batch_norm_backward.default(
        dy, x, weight, None, None, mean, rstd, True, 1e-5, mask
    )
    for kernel in (gradients_from_output, gradients_from_output_by_channels):
        found = kernel(dy, *numbers, mask)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert off(one, other) < most
    over = y.clone()
    assert torch.equal(input_from_output(over, *numbers[1:], over=over), again)
    if y.is_contiguous():
        twin = dy.clone()
        made = gradients_from_output_by_channels(twin, *numbers, mask, over=twin)
        assert made[0] is twin
        assert off(twin, expected[0]) < most


def test_what_counts_as_lost():
    nan = float("nan")
    weight = torch.tensor([1.0, 0.0, 1e-9, 0.1, 0.1, -0.1, nan, 1.0])
    bias = torch.tensor([1.0, 0.0, 0.0, 6.0, 7.0, 6.0, 0.0, nan])
    assert lost(weight, bias).tolist() == [False, True, True, False, True, False, True, True]
    assert lost(weight, None).tolist() == [False, True, True, False, False, False, True, False]
    assert lost(None, None) is None
    rstd = torch.full((8,), 1e-5**-0.5)  # all of the deviation is eps
    assert lost(weight, bias, rstd, 1e-5).tolist()[0]


# A training step.


class Net(nn.Module):
    def __init__(
        self, activation: Callable[[], nn.Module], dtype: torch.dtype, width: int = 5
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [nn.Conv2d(width if i else 3, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), activation()]
        self.body = nn.Sequential(*layers).to(dtype)
        for norm in self.norms():
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            nn.init.normal_(norm.bias)

    def norms(self) -> list[nn.BatchNorm2d]:
        return [m for m in self.modules() if isinstance(m, nn.BatchNorm2d)]

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).sin().square().mean()


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "leaky": lambda: nn.LeakyReLU(0.1),
    "in place": lambda: nn.LeakyReLU(0.1, inplace=True),
    "silu": nn.SiLU,
}


def images(dtype: torch.dtype) -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 3 * 3 * 13 * 11, dtype=dtype).sin().reshape(3, 3, 13, 11),)


def inverting(plan: Plan) -> Plan:
    """The same step with all ops in the rule's way, and batch norms' outputs undone where that can be."""
    problem = make_problem(plan.graph)
    search = Search(problem)
    gaps, choice = problem.gaps, search.player.no_choice()
    choice[len(problem.storage_names) :] = 1
    state, dropped, read = gaps.start_state.copy(), [], []
    for norm in (o for o in plan.graph.captured if o.target == NORM):
        dropped.append(problem.storage_index[norm.inputs[0]])
        output = problem.storage_index[norm.outputs[0]]
        makers = [problem.op_names[m] for m in problem.makers[output]]
        undone = [i for i, name in enumerate(makers) if plan.graph.op[name].target == INVERTED]
        if undone:
            choice[output] = undone[0]
            dropped.append(output)
            (result,) = plan.graph.op[makers[undone[0]]].inputs
            read.append(problem.storage_index[result])
    state[gaps.open & (gaps.end != NEVER) & np.isin(gaps.storage, dropped)] = DROP
    state[gaps.open & np.isin(gaps.storage, read)] = HOLD
    answers = search.player.play(state, choice)
    assert answers is not None
    return replace(plan, program=search.program(answers))


def errors(model: nn.Module, twin: nn.Module, batch: tuple[Tensor]) -> dict[str, float]:
    for net in (model, twin):
        net.zero_grad()
        net(*batch).backward()
    found = {}
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        found[name] = off(p.grad, q.grad)
    return found


def fitted(model: nn.Module, batch: tuple[Tensor], **options: object) -> Plan:
    chosen = {"budget": "100%", "rules": RULES, "allow": ALLOWED, **QUICK, **options}
    return lowtide.fit(model, batch, **chosen)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def seed(estimated: None) -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("case", ACTIVATIONS)
@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=["f32", "f64"]
)
def test_gradients_of_a_step(case: str, dtype: torch.dtype, most: float):
    model, batch = Net(ACTIVATIONS[case], dtype), images(dtype)
    twin = copy.deepcopy(model)
    plan = inverting(fitted(copy.deepcopy(model), batch))
    used = {n for n in plan.program.steps[1] if plan.graph.op[n].rule == "inverted"}
    assert len([n for n in used if "norm_backward" in n]) == 3
    assert any(plan.graph.op[n].target == INVERTED for n in used) == (case != "silu")
    lowtide.apply(model, plan)
    assert not plan.exact
    assert 0 < max(errors(model, twin, batch).values()) < most


def test_a_budget_that_asks_for_it():
    """Verified on a real step: its peak, and the gradients' error."""
    model, batch = Net(ACTIVATIONS["leaky"], torch.float32, 32), images(torch.float32)
    twin = copy.deepcopy(model)
    plan = fitted(model, batch, budget="80%", seconds=2.0, verify=True)
    assert any(plan.graph.op[n].rule == "inverted" for n in plan.program.counts)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert plan.gradient_error is not None
    assert plan.gradient_error < 1e-5
    assert max(errors(model, twin, batch).values()) < 1e-5


def test_it_is_never_used_without_leave():
    model, batch = Net(ACTIVATIONS["leaky"], torch.float32), images(torch.float32)
    plan = fitted(model, batch, rules=None, allow=())
    assert plan.exact
    assert not any(op.rule == "inverted" for op in plan.graph.ops)
    assert any(rule.name == "inverted" for rule in DEFAULT_RULES)


# Weights near zero.


@pytest.mark.parametrize("weight", [0.0, 1e-9, 1e-3])
def test_weights_that_come_near_zero_after_planning(
    weight: float, caplog: pytest.LogCaptureFixture
):
    """The gradients stay right, and more memory is said to be taken."""
    inversion._warn.cache_clear()
    model, batch = Net(ACTIVATIONS["leaky"], torch.float32), images(torch.float32)
    plan = inverting(fitted(copy.deepcopy(model), batch))
    for norm in model.norms():
        with torch.no_grad():
            norm.weight[2:4] = weight
            norm.bias[2:4] = 0.5
    twin = copy.deepcopy(model)
    lowtide.apply(model, plan)
    with caplog.at_level(logging.WARNING, "lowtide"):
        for _ in range(2):
            assert max(errors(model, twin, batch).values()) < 1e-5
    told = [r.message for r in caplog.records if "near zero" in r.message]
    assert len(told) == 1, "once"


def test_weights_that_are_zero_when_planned():
    """As in residual blocks that begin as nothing: that batch norm is left alone, the others are not."""
    model, batch = Net(ACTIVATIONS["leaky"], torch.float32), images(torch.float32)
    nn.init.zeros_(model.norms()[1].weight)
    plan = fitted(model, batch)
    assert sum(o.target == SPARED for o in plan.graph.ops) == 2
    assert sum("norm_backward" in o.name for o in plan.graph.ops if o.rule) >= 2


def test_a_second_backward_of_one_forward():
    model, batch = Net(ACTIVATIONS["leaky"], torch.float32), images(torch.float32)
    lowtide.apply(model, inverting(fitted(copy.deepcopy(model), batch)))
    loss, found = model(*batch), []
    for keep in (True, False):
        model.zero_grad()
        loss.backward(retain_graph=keep)
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))


class Product(nn.Module):
    """Reads a batch norm's input a second time, and in backward, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        return (self.norm(made).sin() + made.square()).mean()


def test_an_input_that_something_else_reads_is_made_again():
    model, batch = Product(), images(torch.float32)
    twin = copy.deepcopy(model)
    plan = fitted(copy.deepcopy(model), batch)
    (again,) = (o for o in plan.graph.ops if o.target == INVERTED)
    search = Search(make_problem(plan.graph))
    problem, gaps = search.problem, search.problem.gaps
    choice, state = search.player.no_choice(), gaps.start_state.copy()
    storage = problem.storage_index[again.outputs[0]]
    makers = [problem.op_names[m] for m in problem.makers[storage]]
    choice[storage] = makers.index(again.name)
    state[gaps.open & (gaps.end != NEVER) & (gaps.storage == storage)] = DROP
    state[gaps.open & (gaps.storage == problem.storage_index[again.inputs[0]])] = HOLD
    answers = search.player.play(state, choice)
    assert answers is not None
    program = search.program(answers)
    assert again.name in program.steps[1]
    lowtide.apply(model, replace(plan, program=program))
    found = errors(model, twin, batch)
    assert 0 < max(found.values()) < 1e-5
