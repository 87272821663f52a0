"""The doors: each call wires the layers together and decides nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowtide.errors import OptionError, did_you_mean
from lowtide.ir.graph import Graph
from lowtide.plan.plan import Plan, plan_of
from lowtide.rules import DEFAULT_RULES, Exactness, Rule, add_makers
from lowtide.units import Budget, parse_budget

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["apply", "fit", "load", "measure_peak", "plan"]

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


def plan(
    source: Graph | Plan,
    budget: str | int | Budget,
    *,
    solver: str = "auto",
    seconds: float = 30.0,
    allow: Sequence[str] = (),
    rules: Sequence[Rule] | None = None,
) -> Plan:
    """Plan a graph, or a saved plan's graph, for a budget. Needs no torch."""
    from lowtide.ir.program import unplanned
    from lowtide.plan.infeasible import budget_error
    from lowtide.sim.memory import simulate
    from lowtide.solve.planner import solve
    from lowtide.solve.result import Status

    graph = source.graph if isinstance(source, Plan) else source
    if rules is not None or not any(o.rule for o in graph.ops):
        chosen = DEFAULT_RULES if rules is None else rules
        # What a probed rule's ops cost, and whether they may be used, only the device can tell.
        known = [rule for rule in chosen if not rule.probed]
        graph = add_makers(graph.as_captured(), known, allow)
    before = simulate(graph, unplanned(graph)).peak
    limit = _bytes(parse_budget(budget), before)
    result = solve(graph, limit, solver=solver, seconds=seconds)
    if result.status is Status.INFEASIBLE:
        raise budget_error(graph, result.program, limit, before)
    made = plan_of(graph, limit, result, allow=tuple(allow))
    return replace(made, environment=source.environment) if isinstance(source, Plan) else made


def apply(model: nn.Module, plan: Plan) -> None:
    """Run a saved plan from the model's next call on. A plan of another graph is refused by that call."""
    from lowtide.execute.fitting import run_saved

    run_saved(model, plan)


def load(path: str | Path) -> Graph | Plan:
    """A graph or a plan from its file. Nothing in the file is executed."""
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
    known = [str(e) for e in Exactness if e is not Exactness.EXACT]
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


def _bytes(budget: Budget, unplanned_peak: int) -> int:
    if budget.device:
        raise OptionError(
            'budget "device" needs the device: give a size or a share of the unplanned peak'
        )
    if budget.bytes is not None:
        return budget.bytes
    return int(unplanned_peak * (budget.fraction or 1.0))
