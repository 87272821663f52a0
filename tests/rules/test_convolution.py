"""Convolution backward in parts and by other kernels: what is offered, what the kernels give, and what a plan does with it."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.capture.forms import Form
from lowtide.cost.store import CostStore
from lowtide.errors import PlanMismatchError
from lowtide.ir.program import Program
from lowtide.kernels.convolution import (
    gradients_and_made_parts,
    input_gradient,
    output_padding,
    parameter_gradients,
    parameter_gradients_by_parts,
    parameter_gradients_by_shares,
)
from lowtide.kernels.layout import in_parts
from lowtide.measure import price, probe
from lowtide.measure.timing import Call
from lowtide.plan.plan import Plan
from lowtide.rules.convolution import Shares, SplitBackward, Transposed
from lowtide.rules.layouts import MADE_PARTS, SHARED, ChannelParts, ChannelsLast, parts_of
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.training import differences, fit_or_floor

CASES = [
    # images, channels in and out, kernel, stride, padding, dilation, groups
    (2, 4, 6, 3, 1, 1, 1, 1),
    (3, 4, 8, 3, 2, 1, 1, 2),
    (2, 3, 5, 5, 3, 2, 1, 1),
    (2, 4, 4, 3, 1, 2, 2, 4),
    (1, 6, 4, 1, 2, 0, 1, 1),
]


def backward(
    case: tuple[int, ...], size: int = 13
) -> tuple[Tensor, Tensor, Tensor, tuple[object, ...]]:
    images, given, made, kernel, stride, padding, dilation, groups = case
    x = torch.randn(images, given, size, size - 2)
    w = torch.randn(made, given // groups, kernel, kernel)
    rest = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups)
    y = torch.ops.aten.convolution.default(x, w, None, *rest)
    return torch.randn_like(y), x, w, rest


@pytest.mark.parametrize("case", CASES)
def test_the_transposed_convolution_is_the_input_gradient(case: tuple[int, ...]):
    dy, x, w, rest = backward(case)
    (expected, *_) = torch.ops.aten.convolution_backward.default(
        dy, x, w, None, *rest, [True, False, False]
    )
    stride, padding, dilation, _, _, groups = rest
    missing = output_padding(x.shape[2:], dy.shape[2:], w.shape[2:], stride, padding, dilation)
    made, *others = input_gradient(dy, w, stride, padding, dilation, missing, groups)
    assert others == [None, None]
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("case", CASES)
def test_the_plain_convolution_is_a_transposed_ones_input_gradient(case: tuple[int, ...]):
    x, like, w, (stride, padding, dilation, _, _, groups) = backward(case)
    missing = output_padding(like.shape[2:], x.shape[2:], w.shape[2:], stride, padding, dilation)
    rest = (stride, padding, dilation, True, missing, groups)
    dy = torch.randn_like(torch.ops.aten.convolution.default(x, w, None, *rest))
    (expected, *_) = torch.ops.aten.convolution_backward.default(
        dy, x, w, None, *rest, [True, False, False]
    )
    made, *_ = input_gradient(dy, w, stride, padding, dilation, [0, 0], groups, True)
    torch.testing.assert_close(made, expected)


class Upwards(nn.Module):
    """Small images become large ones, as in generators and decoders."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (32, 16, 16, 3)
        self.layers = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False) for a, b in pairwise(sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


def test_transposed_layers_do_without_their_input():
    torch.manual_seed(0)
    model, given = Upwards(), (torch.randn(8, 32, 8, 8),)
    twin = copy.deepcopy(model)
    plan = fit_or_floor(model, given, "55%", verify=True)
    offered = [op for op in plan.graph.ops if op.rule == "transposed"]
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert not differences(twin, model, given)
    assert all(set(op.inputs).isdisjoint(plan.graph.op[op.of].inputs[1:2]) for op in offered)
    rounded = lowtide.fit(
        copy.deepcopy(twin), given, budget="100%", allow=("rounding",), seconds=0.2
    )
    assert sum(op.rule == "transposed" for op in rounded.graph.ops) == 2


@pytest.mark.parametrize("case", CASES)
def test_channels_last_operands_give_the_parameter_gradients(case: tuple[int, ...]):
    dy, x, w, rest = backward(case)
    mask = [False, True, True]
    _, *expected = torch.ops.aten.convolution_backward.default(dy, x, w, [len(w)], *rest, mask)
    laid = [t.contiguous(memory_format=torch.channels_last) for t in (dy, x)]
    nothing, *made = parameter_gradients(*laid, w, [len(w)], *rest, mask)
    assert nothing is None
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride(), "AccumulateGrad copies what is laid out otherwise"


@pytest.mark.parametrize(
    ("channels", "count"), [(3, 1), (16, 1), (32, 2), (48, 3), (96, 3), (64, 4), (256, 4), (40, 1)]
)
def test_parts_are_of_whole_blocks(channels: int, count: int):
    assert parts_of(channels) == count


@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_parts_of_channels_give_the_parameter_gradients(bias: bool, shares: int):
    dy, x, w = torch.randn(4, 64, 9, 9), torch.randn(4, 32, 9, 9), torch.randn(64, 32, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    mask = [False, True, bias]
    _, *expected = torch.ops.aten.convolution_backward.default(dy, x, w, [64], *rest, mask)
    parts = in_parts(dy, parts_of(64)), in_parts(x, parts_of(32))
    _, *made = parameter_gradients_by_parts(*parts, w, [64], *rest, wanted=mask, shares=shares)
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shares", [2, 4])
def test_shares_of_the_samples_give_the_parameter_gradients(shares: int):
    dy, x, w = torch.randn(4, 6, 9, 9), torch.randn(4, 5, 9, 9), torch.randn(6, 5, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    mask = [False, True, True]
    _, *expected = torch.ops.aten.convolution_backward.default(dy, x, w, [6], *rest, mask)
    threads = torch.get_num_threads()
    _, *made = parameter_gradients_by_shares(dy, x, w, [6], *rest, wanted=mask, shares=shares)
    assert torch.get_num_threads() == threads
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parts_of_an_input_can_be_made_one_at_a_time(bias: bool, blocked: bool, shares: int):
    source, filters, dy = (
        torch.randn(4, 3, 9, 9),
        torch.randn(32, 3, 3, 3),
        torch.randn(4, 64, 9, 9),
    )
    some = torch.randn(32) if bias else None
    w = torch.randn(64, 32, 3, 3)
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    x = torch.ops.aten.convolution.default(source, filters, some, *rest).relu()
    _, *expected = torch.ops.aten.convolution_backward.default(dy, x, w, [64], *rest, [False, True, True])  # fmt: skip
    *made, inside = gradients_and_made_parts(
        in_parts(dy, 4), 2, source, filters, some, w, [64], *rest, wanted=[False, True, True],
        convolved=rest, then=((torch.ops.aten.relu.default, ()),), blocked=blocked, shares=shares,
    )  # fmt: skip
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(inside, x, rtol=1e-4, atol=1e-4)


CONVOLUTION = (ChannelsLast(), ChannelParts(), SplitBackward(), Shares(), Transposed())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wide = [m for _ in range(3) for m in (nn.Conv2d(32, 32, 3, padding=1), nn.Tanh())]
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *wide)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean()


def images(size: int = 48) -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 4 * 3 * size * size).reshape(4, 3, size, size),)


@pytest.fixture
def lean() -> Plan:
    """Everything kept, and every convolution's backward in the way that needs the least memory."""
    plan = lowtide.fit(Net(), images(), budget="100%", rules=CONVOLUTION, seconds=0.2)
    search = Search(make_problem(plan.graph))
    answers = search.player.play(search.problem.gaps.start_state, search.player.lean_choice())
    assert answers is not None
    return replace(plan, program=search.program(answers))


def used_rules(plan: Plan) -> set[str]:
    return {plan.graph.op[name].rule for name in plan.program.counts}


def test_both_are_offered_where_their_bits_are_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(price, "same_bits", lambda *_, **__: True)
    plan = lowtide.fit(Net(), images(), budget="100%", rules=CONVOLUTION, seconds=0.2)
    rules = {op.rule for op in plan.graph.ops}
    assert {"split", "shares", "transposed", "channels_last", "parts"} <= rules
    ops = plan.graph.op
    whole, shared = (o for o in ops.values() if o.name.startswith("convolution_backward.parts"))
    assert shared.name == whole.name + SHARED
    assert shared.workspace <= 0.6 * whole.workspace
    copies = [v for v in plan.graph.values if v.name.endswith(".channels_last")]
    assert copies
    assert all(v.bytes == 4 * 32 * 48 * 48 * 4 or v.bytes == 4 * 3 * 48 * 48 * 4 for v in copies)


def test_less_workspace(lean: Plan):
    ops = {op.name: op for op in lean.graph.ops}
    whole = ops["convolution_backward.parameters"].workspace
    for rule in ("parts", "channels_last"):
        other = ops.get(f"convolution_backward.{rule}")  # not there where it rounds otherwise
        assert other is None or other.workspace < 0.6 * whole


class First(nn.Module):
    """The second convolution's input is large, and what it is made from is small."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        wide = nn.Conv2d(32, 32, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *between, wide, nn.MaxPool2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).tanh().mean()


RULES = (ChannelParts(), SplitBackward())


def making_parts(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[str]]:
    monkeypatch.setattr(price, "same_bits", lambda *_, **__: True)
    plan = lowtide.fit(model, images(), budget="100%", rules=RULES, seconds=0.2, verify=False)
    return plan, [op.name for op in plan.graph.ops if op.target == MADE_PARTS]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "between", [[], [nn.ReLU()], [nn.Tanh(), nn.LeakyReLU(0.1)]], ids=["bare", "relu", "two"]
)
def test_an_input_that_is_large_is_made_in_parts(
    between: list[nn.Module], shared: bool, monkeypatch: pytest.MonkeyPatch
):
    plain = First(*between)
    planned = copy.deepcopy(plain)
    plan, names = making_parts(copy.deepcopy(plain), monkeypatch)
    name = names[shared]
    graph = plan.graph
    op, whole = graph.op[name], graph.op[graph.op[name].of]
    assert whole.inputs[1] not in op.inputs
    assert op.workspace < whole.workspace
    copied = next(o.name for o in graph.ops if op.inputs[0] in o.outputs)
    forward, backward = plan.program.steps
    parts = {whole.name: (f"{whole.name}.input", copied, name)}
    swapped = Program((forward, tuple(n for one in backward for n in parts.get(one, (one,)))))
    lowtide.apply(planned, replace(plan, program=swapped))
    for a, b in zip(results(plain), results(planned), strict=True):
        torch.testing.assert_close(a, b)


def results(model: nn.Module) -> list[Tensor]:
    model(*images()).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "between",
    [[nn.BatchNorm2d(32)], [nn.Conv2d(32, 32, 1)], [nn.Dropout(0.5)]],
    ids=["norm", "wide", "random"],
)
def test_what_depends_on_more_is_not_made_in_parts(
    between: list[nn.Module], monkeypatch: pytest.MonkeyPatch
):
    """A norm's statistics, an input that is as large, and random numbers."""
    _, names = making_parts(First(*between), monkeypatch)
    assert "convolution_backward.made_parts" not in names


def test_copies_that_nobody_reads_are_not_offered(lean: Plan):
    """What would read them may give other bits here."""
    copies = [op.outputs[0] for op in lean.graph.ops if op.target == "lowtide.copy"]
    for name in copies:
        assert any(user.target != "lowtide.copy_back" for user in lean.graph.users[name])


def test_the_same_bits_by_other_kernels(lean: Plan):
    offered = {op.rule for op in lean.graph.ops} & {"transposed", "channels_last", "parts"}
    if not offered:
        pytest.skip("here the other kernels round otherwise")
    assert used_rules(lean) & offered
    plain = Net()
    planned = copy.deepcopy(plain)
    lowtide.apply(planned, lean)
    assert differences(plain, planned, images()) == []


@pytest.mark.parametrize(
    "rule", [Transposed(), ChannelsLast(), ChannelParts()], ids=lambda r: r.name
)
def test_other_bits_are_not_offered(rule, monkeypatch: pytest.MonkeyPatch, estimated: None):
    monkeypatch.setattr(price, "same_bits", lambda *_, **__: False)
    plan = lowtide.fit(Net(), images(), budget="100%", rules=(rule,), seconds=0.2, verify=False)
    assert all(not op.rule for op in plan.graph.ops)
    assert plan.graph == plan.graph.as_captured()


@pytest.mark.parametrize(
    "model",
    [
        nn.ConvTranspose2d(3, 8, 3),
        nn.Conv1d(3, 8, 3),
        nn.Conv3d(3, 8, 3),
        nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
    ],
    ids=lambda m: type(m).__name__,
)
def test_calls_without_such_forms_train_as_before(model: nn.Module, estimated: None):
    shape = (2, 3, *(9,) * (next(model.parameters()).dim() - 2))
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
    if x.dim() == 4 and isinstance(model, nn.Conv2d):
        x = x.contiguous(memory_format=torch.channels_last)
    planned = copy.deepcopy(model)
    fit_or_floor(planned, (x,), "60%")
    assert differences(model, planned, (x,)) == []


def test_frozen_weights_and_frozen_inputs(estimated: None):
    model = Net()
    model.body[1].weight.requires_grad_(False)
    model.body[3].bias.requires_grad_(False)
    planned = copy.deepcopy(model)
    fit_or_floor(planned, images(), "50%")
    assert differences(model, planned, images()) == []


def test_a_plan_from_a_device_with_other_kernels_is_refused(
    lean: Plan, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(price, "same_bits", lambda *_, **__: False)
    model = Net()
    lowtide.apply(model, lean)
    with pytest.raises(PlanMismatchError, match="other bits on this device"):
        model(*images())


def test_a_probe_tells_bits_apart_and_is_remembered():

    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = torch.randn(1000, 37)

    def summed(x: Tensor) -> Tensor:
        return x.sum(1)

    def summed_backwards(x: Tensor) -> Tensor:
        return x.flip(1).cumsum(1)[:, -1].contiguous()

    runs = []

    def wrong(x: Tensor) -> Tensor:
        return x.sum(1) * 1.001

    def same(one, other, store, rounding: bool = False) -> bool:
        def call(form: Form) -> Call:
            runs.append(form)
            return Call(form.target.__name__, form.target)

        return probe.same_bits(
            Form(one, (node,), {}), Form(other, (node,), {}), [None], call, store, rounding=rounding
        )

    store = CostStore("unused", "test")
    store._append = lambda line: None  # type: ignore[method-assign]
    assert same(summed, summed, store)
    assert not same(summed, summed_backwards, store)
    entry = store.get(f"same bits, {probe._ENOUGH} numbers: summed_backwards and summed")
    assert entry is not None
    assert not entry.same_bits
    assert same(summed, summed_backwards, store, rounding=True)
    assert not same(summed, wrong, store, rounding=True)


def test_few_numbers_are_tried_often():
    """Two ways that differ in one number of a hundred agree on most small tensors."""
    node = torch.fx.Graph().placeholder("x")
    node.meta["val"] = torch.zeros(4, 6)

    def plain(x: Tensor) -> Tensor:
        return x.clone()

    def rarely(x: Tensor) -> Tensor:
        return torch.where(x > 2.4, x.nextafter(x + 1), x)

    def call(form: Form) -> Call:
        return Call(form.target.__name__, form.target)

    store = CostStore("unused", "test")
    store._append = lambda line: None  # type: ignore[method-assign]
    forms = Form(plain, (node,), {}), Form(rarely, (node,), {})
    torch.manual_seed(0)
    assert not probe.same_bits(*forms, [None], call, store)
