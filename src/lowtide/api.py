"""The doors: each call wires the layers together and decides nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import CaptureError, OptionError, did_you_mean
from lowtide.ir.graph import Graph
from lowtide.plan.plan import Plan, plan_of
from lowtide.plan.profile import Profile
from lowtide.rules import BY_DEFAULT, DEFAULT_RULES, Exactness, Rule, add_makers
from lowtide.units import Budget, parse_budget

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lowtide.execute.batches import Batches
    from lowtide.plan.frontier import Frontier

__all__ = ["apply", "fit", "frontier", "largest_batch", "load", "measure_peak", "plan", "profile"]

log = logging.getLogger("lowtide")
EXECUTORS = ("aten",)


def fit(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int | Budget,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    executor: str = "aten",
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
    solver: str = "auto",
    seconds: float = 30.0,
    verify: bool = True,
) -> Plan:
    """Make `model` train within `budget` from its next call on, in place.

    `args` and `kwargs` are one batch, as the model is called with. With `verify` a real step is measured, and the plan is made
    again until the measured peak holds. Parameters, buffers, gradients and random generators are left as they were found; a
    call that fails leaves the module as it was.
    """
    from lowtide.execute.fitting import Fitting

    options = make_options(
        budget, executor=executor, allow=allow, rules=rules, solver=solver, seconds=seconds
    )
    return Fitting(model, args, kwargs or {}, options, optimizer, loss).run(verify=verify)


def largest_batch(
    make_batch: Callable[[int], Any],
    model: nn.Module,
    *,
    budget: str | int | Budget,
    start: int = 8,
    most: int = 65536,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
    solver: str = "auto",
    seconds: float = 30.0,
    tell: Callable[[str], None] | None = None,
) -> Batches:
    """The largest batch that trains within `budget`, and which of it and smaller ones is fastest, from measured steps.

    `make_batch(n)` makes the arguments of a call with n samples. The model is left as it was; `fit` it for the batch you choose.
    A dozen sizes are planned, which may take minutes: `tell` gets a line for each. By default they are said on stderr, if it is a terminal.
    """
    from lowtide.execute.batches import Trials, find_batches
    from lowtide.report.progress import say

    options = make_options(budget, allow=allow, rules=rules, solver=solver, seconds=seconds)
    if options.budget.fraction is not None:
        raise OptionError(
            f"budget={budget!r} is a share of a step that depends on the batch: say it in bytes"
        )
    return find_batches(
        Trials(make_batch, model, options, optimizer, loss, tell or say), start, most
    )


def profile(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    steps: int = 1,
    graph: bool = True,
    fake: bool | str = False,
) -> Profile:
    """Run a step of `model` on a batch and say where its memory goes: which layer, which kind of data, which op and line.

    With an `optimizer` its update is part of the step; of several `steps` the last is shown, and the peaks of all. Parameters, buffers,
    gradients, the optimizer's state and random generators are left as they were found. With `graph` the step is also captured and
    priced, so that the profile can be planned; where that is not possible the profile says why.

    With `fake` nothing runs: the step is captured on fake tensors and its costs are estimated, so that the model may be larger than this machine
    (made on the meta device, or under torch's FakeTensorMode). `fake="A100"` takes them from that device's data sheet.
    """
    if fake:
        from lowtide.execute.faking import fake_profile

        device = fake if isinstance(fake, str) else "cpu"
        return fake_profile(model, args, kwargs or {}, optimizer, loss, device)
    from lowtide.execute.profiling import profile_step

    return profile_step(model, args, kwargs or {}, optimizer, loss, steps=steps, graph=graph)


def plan(
    source: Graph | Plan | Profile,
    budget: str | int | Budget,
    *,
    solver: str = "auto",
    seconds: float = 30.0,
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
) -> Plan:
    """Plan a graph, or the graph of a profile or a saved plan, for a budget. Needs no torch."""
    from lowtide.ir.program import unplanned
    from lowtide.plan.floors import Floors
    from lowtide.plan.infeasible import budget_error
    from lowtide.settings import settings
    from lowtide.sim.memory import simulate
    from lowtide.solve.planner import solve
    from lowtide.solve.result import Status

    found = _plannable(source)
    allow = _allowed(found, allow)
    graph = _with_makers(found, rules, allow)
    before = simulate(graph, unplanned(graph)).peak
    limit = parse_budget(budget).bytes_of(before)
    floors = Floors(settings().floor_dir)
    result = solve(graph, limit, solver=solver, seconds=seconds, known=floors.get(graph))
    if result.status is Status.INFEASIBLE:
        smallest = floors.put(graph, result.program)
        needed = simulate(graph, smallest).peak
        raise budget_error(graph, smallest, limit, before, needed)
    made = plan_of(graph, limit, result, allow=allow)
    return made if isinstance(source, Graph) else replace(made, environment=source.environment)


def frontier(
    source: Graph | Plan | Profile,
    points: int = 12,
    *,
    seconds: float = 30.0,
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
) -> Frontier:
    """The memory/time curve of a graph, or of the graph of a profile or a saved plan: a plan for each of `points` budgets. Needs no torch."""
    from lowtide.plan.frontier import Frontier
    from lowtide.solve.frontier import solve_frontier

    environment = {} if isinstance(source, Graph) else source.environment
    found = _plannable(source)
    allow = _allowed(found, allow)
    graph = _with_makers(found, rules, allow)
    results = solve_frontier(graph, points, seconds=seconds)
    return Frontier(
        tuple(
            plan_of(graph, budget, result, allow=allow, environment=environment)
            for budget, result in results
        )
    )


def _plannable(source: Graph | Plan | Profile) -> Graph | Plan:
    if not isinstance(source, Profile):
        return source
    if source.graph is None:
        why = source.environment.get("not captured") or "it was made without one"
        raise CaptureError(f"the profile of {source.model} holds no graph to plan: {why}")
    return source.graph


def _allowed(source: Graph | Plan, allow: Sequence[str]) -> tuple[str, ...]:
    """What was allowed for a plan is for others of its graph too."""
    words = (allow,) if isinstance(allow, str) else tuple(allow)
    return words or (source.allow if isinstance(source, Plan) else ())


def _with_makers(source: Graph | Plan, rules: Sequence[Rule] | None, allow: Sequence[str]) -> Graph:
    graph = source.graph if isinstance(source, Plan) else source
    if rules is None and (isinstance(source, Plan) or any(o.rule for o in graph.ops)):
        allowed = {*BY_DEFAULT, *map(Exactness, allow)}
        other = {r.name for r in DEFAULT_RULES if r.exactness not in allowed}
        return graph.without({o.name for o in graph.ops if o.rule in other})
    chosen = DEFAULT_RULES if rules is None else rules
    # What a probed rule's ops cost, and whether they may be used, only the device can tell.
    known = [rule for rule in chosen if not rule.probed]
    return add_makers(graph.as_captured(), known, allow)


def apply(model: nn.Module, plan: Plan) -> None:
    """Run a saved plan from the model's next call on. A plan of another graph is refused by that call."""
    from lowtide.execute.fitting import run_saved

    run_saved(model, plan)


def load(path: str | Path) -> Graph | Plan | Profile:
    """A graph, a plan or a profile from its file. Nothing in the file is executed."""
    from lowtide.plan.format import load_file

    return load_file(path)


def measure_peak(step: Callable[[], object]) -> int:
    """The most bytes that `step` had allocated at once, net of what was there before."""
    from lowtide.measure.peak import measure_peak as measure

    return measure(step)


def make_options(
    budget: str | int | Budget,
    *,
    executor: str = "aten",
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
    solver: str = "auto",
    seconds: float = 30.0,
) -> Any:
    """Checked options, for this door and the others."""
    from lowtide.execute.session import Options

    if executor not in EXECUTORS:
        raise OptionError(
            f"no executor called {executor!r}{did_you_mean(executor, list(EXECUTORS))} Known: {', '.join(EXECUTORS)}"
        )
    from lowtide.solve.planner import SOLVERS

    if not isinstance(solver, str) or solver not in SOLVERS:
        raise OptionError(
            f"no solver called {solver!r}{did_you_mean(str(solver), list(SOLVERS))} Known: {', '.join(SOLVERS)}"
        )
    known = [str(e) for e in Exactness if e not in BY_DEFAULT]
    words = (allow,) if isinstance(allow, str) else tuple(allow)
    for word in words:
        if word not in known:
            raise OptionError(
                f"allow={word!r} is not known{did_you_mean(word, known)} Known: {', '.join(known)}"
            )
    if not seconds > 0:
        raise OptionError(f"seconds={seconds!r} must be above zero: it is the planner's time limit")
    return Options(
        budget=parse_budget(budget), allow=words, rules=rules, solver=solver, seconds=float(seconds)
    )
