"""Steps of several graphs: merged and taken apart again, planned within one budget, run with the same bits."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import lowtide
from lowtide.errors import BudgetError, PlanMismatchError
from lowtide.execute.attach import session_of
from lowtide.execute.pieces import PASSED, graph_number, merge, part, runs_of
from lowtide.execute.session import Session
from lowtide.execute.survey import Survey
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.json import graph_hash
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from tests.training import differences

D, BATCH = 64, 256


def blocks(count: int, *, norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(count):
        parts += [nn.Linear(D, D), *([nn.BatchNorm1d(D)] if norm else []), nn.GELU()]
    return nn.Sequential(*parts)


class OneBreak(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = blocks(4), blocks(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


class ThreeBreaks(nn.Module):
    """A break by request, one by print, one by a branch on data; a skip over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (blocks(2, norm=True) for _ in range(4))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        torch._dynamo.graph_break()
        y = self.drop(self.b(h) + h)
        print(end="")
        y = self.c(y)
        y = y + h if y.sum().item() > -1e9 else y
        return self.d(y)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        y = gelu(self.a(x))
        torch._dynamo.graph_break()
        return x + gelu(self.b(y))


class Loop(nn.Module):
    """The graphs of one layer are captured once and run for every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tied(nn.Module):
    """One weight on both sides of the break."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = blocks(2), blocks(2)
        self.shared = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.a(x))
        torch._dynamo.graph_break()
        return self.shared(self.b(x))


class Outside(nn.Module):
    """A layer that Dynamo never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.hidden = blocks(3), nn.Linear(D, D)

    @torch.compiler.disable
    def unseen(self, x: Tensor) -> Tensor:
        return self.hidden(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.unseen(self.a(x)))


MODELS = [OneBreak, ThreeBreaks, Loop, Tied, Outside]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(BATCH, D, generator=torch.Generator().manual_seed(3))


def fit(model: nn.Module, x: Tensor, budget: str | int, **options: object) -> lowtide.Plan:
    chosen = {"seconds": 2.0, "loss": lambda output, _: output.square().mean(), **options}
    return lowtide.fit(model, (x,), budget=budget, **chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", MODELS)
def test_same_bits_within_the_budget(make: type[nn.Module], x: Tensor) -> None:
    plain = make()
    model = copy.deepcopy(plain)
    plan = fit(model, x, "75%")
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget < plan.unplanned_peak
    assert differences(plain, model, (x,)) == []


@pytest.mark.parametrize("make", [OneBreak, ThreeBreaks])
def test_near_the_floor(make: type[nn.Module], x: Tensor) -> None:
    plain, loss = make(), lambda output, _: output.sum()
    floor = 1000
    for _ in range(3):  # the loss runs outside of the graphs: what it needs is learnt by measuring
        model = copy.deepcopy(plain)
        try:
            plan = fit(model, x, int(floor * 1.02), loss=loss)
            break
        except BudgetError as error:
            floor = error.floor
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget < 0.6 * plan.unplanned_peak
    assert differences(plain, model, (x,)) == []


def test_the_plan_says_what_it_covers(x: Tensor) -> None:
    (words,) = fit(OneBreak(), x, "80%", verify=False).covers
    assert words.startswith("covers 2 graphs, planned as one, with ")
    assert "% of the unplanned peak; breaks at test_pieces.py:" in words
    assert "graph_break()" in words
    (words,) = fit(ThreeBreaks(), x, "80%", verify=False).covers
    assert words.count("test_pieces.py:") == 3
    (words,) = fit(Loop(), x, "80%", verify=False).covers
    assert re.match(r"covers 8 graphs \([34] captured\), planned as one", words)


def test_what_ran_outside_is_named(x: Tensor) -> None:
    plan = fit(Outside(), x, "90%", verify=False)
    assert "not planned: 2 parameters (16.2 KiB)" in plan.covers[1]
    assert ": hidden" in plan.covers[1]
    assert plan.graph.held["gradient"] == D * (D + 1) * 4


def test_one_graph_is_planned_once_and_says_so(x: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lowtide"):
        plan = fit(blocks(3), x, "80%", verify=False)
    assert plan.covers == ("covers 1 graph",)
    assert sum(r.message.startswith("fits") for r in caplog.records) == 1


def survey(model: nn.Module, x: Tensor) -> tuple[Session, Survey]:
    """A step of a fitted module, compiled and watched again."""
    fit(model, x, "90%", verify=False)
    session = session_of(model)
    assert session is not None
    torch._dynamo.reset()
    session.saved = None
    watched = Survey()
    session.begin(watched)
    output = model(x)
    output.sum().backward()
    watched.step_ends()
    session.watch.survey = None
    return session, watched


@pytest.mark.parametrize("make", [OneBreak, ThreeBreaks, Loop, Tied])
def test_merged_and_taken_apart_again(make: type[nn.Module], x: Tensor) -> None:
    _, watched = survey(make(), x)
    runs = watched.runs()
    graph = merge(runs)
    check_graph(graph)
    assert runs_of(graph) == len(runs) > 1
    program = unplanned(graph)
    check_program(graph, program)
    assert any(o.target == PASSED for o in graph.ops)
    for index, run in enumerate(runs):
        back = part(graph, program, index)
        assert graph_number(graph, index) == run.number
        assert graph_hash(back.graph) == graph_hash(run.graph)
        assert back.program == unplanned(run.graph)


def test_what_passes_is_counted_once(x: Tensor) -> None:
    """Up: the activation at the break. Down: its gradient."""
    _, watched = survey(OneBreak(), x)
    runs = watched.runs()
    linked, apart = merge(runs), merge([_blind(r) for r in runs])
    assert [o.segment for o in linked.ops if o.target == PASSED] == [1, 3]
    size = BATCH * D * 4
    assert simulate(linked, unplanned(linked)).peak <= simulate(apart, unplanned(apart)).peak - size
    held = {r.value: r.until for r in linked.required}
    (up,) = (o.inputs[0] for o in linked.ops if o.target == PASSED and o.segment == 1)
    assert held[up] == 1, "the frames hold it until the last forward is over"


def _blind(run):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    return replace(run, inputs={}, outputs={}, tangents={}, gradients={}, until={})


def test_a_shared_parameter_is_counted_once(x: Tensor) -> None:
    _, watched = survey(Tied(), x)
    graph = merge(watched.runs())
    weight = sum(p.nbytes for p in Tied().parameters())
    owned = {graph.storage(o.value) for o in graph.outside if o.owned}
    assert sum(graph.value[s].bytes for s in owned) == weight + x.nbytes


def test_a_saved_plan_of_several_graphs_runs_again(x: Tensor, tmp_path: Path) -> None:
    plain = ThreeBreaks()
    plan = fit(copy.deepcopy(plain), x, "75%", verify=False)
    path = plan.save(tmp_path / "three.plan.json")
    torch._dynamo.reset()
    model = copy.deepcopy(plain)
    lowtide.apply(model, lowtide.load(path))  # type: ignore[arg-type]
    assert differences(plain, model, (x,)) == []
    other = OneBreak()
    lowtide.apply(other, plan)
    with pytest.raises(PlanMismatchError):
        other(x)


def test_other_shapes_after_fit(x: Tensor) -> None:
    plain = OneBreak()
    model = copy.deepcopy(plain)
    plan = fit(model, x, "85%")
    held = sum(p.nbytes for p in model.parameters())
    for rows in (96, BATCH, 128):
        batch = torch.randn(rows, D)
        assert differences(plain, model, (batch,)) == []
        model.zero_grad(set_to_none=True)
        peak = lowtide.measure_peak(lambda batch=batch: model(batch).sum().backward())
        assert peak + held + batch.nbytes <= plan.budget


def test_only_forward_runs_where_that_is_enough(x: Tensor) -> None:
    model = blocks(2)
    ran = []
    model[0].weight.register_hook(ran.append)
    fit(model, x, "90%", verify=False)
    assert not ran


def test_ctrl_c_while_solving_keeps_the_best_plan(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide.report import progress

    class Shown:
        calls = 0

        def capturing(self) -> None: ...

        def measuring(self, *_: int) -> None: ...

        def solving(self, _: object) -> None:
            Shown.calls += 1
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(progress, "display", lambda: contextlib.nullcontext(Shown()))
    plain = blocks(6)
    model = copy.deepcopy(plain)
    plan = fit(model, x, "75%", seconds=20.0, verify=False)
    assert Shown.calls
    assert plan.peak <= plan.budget
    assert differences(plain, model, (x,)) == []


def test_failing_leaves_everything_as_found(x: Tensor) -> None:
    model = ThreeBreaks()
    model(x).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = {n: p.grad for n, p in model.named_parameters()}
    state = torch.get_rng_state()
    with pytest.raises(BudgetError):
        fit(model, x, 1000)
    assert model._compiled_call_impl is None
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert all(p.grad is gradients[n] for n, p in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_replanning_after_a_measured_step_was_too_large(
    x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowtide.execute import fitting

    real = fitting.measure_peak
    extra = [BATCH * D * 4, 0, 0, 0]
    monkeypatch.setattr(fitting, "measure_peak", lambda *a: real(*a) + extra.pop(0) * 3)
    plain = OneBreak()
    model = copy.deepcopy(plain)
    plan = fit(model, x, "80%")
    assert len(extra) < 3
    assert runs_of(plan.graph) == 2
    assert differences(plain, model, (x,)) == []


def test_training_goes_on_as_without_a_plan(x: Tensor) -> None:
    plain = ThreeBreaks()
    model = copy.deepcopy(plain)
    fit(model, x, "75%", verify=False)
    traced = torch.compile(plain, backend="aot_eager", dynamic=False)
    for net in (traced, model):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        torch.manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for (name, a), b in zip(plain.named_parameters(), model.parameters()):
        assert torch.equal(a, b), name
