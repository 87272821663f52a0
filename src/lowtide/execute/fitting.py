"""How is one module fitted? Capture, plan, measure a real step, plan again if reality disagrees, and undo all on failure."""

from __future__ import annotations

import logging
import platform
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.cost.store import CostStore
from lowtide.errors import (
    BudgetError,
    CaptureError,
    LowtideError,
    NoGradientError,
    OptionError,
    VerificationError,
)
from lowtide.execute.attach import attach, detach
from lowtide.execute.covers import coverage, uncovered
from lowtide.execute.error import gradient_error
from lowtide.execute.pieces import merge
from lowtide.execute.session import Options, Session
from lowtide.execute.survey import Survey
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind
from lowtide.measure.memory import held_by_kind, held_storages, model_device
from lowtide.measure.peak import available_bytes, measure_peak
from lowtide.measure.preserve import preserved
from lowtide.measure.step import Step
from lowtide.measure.step import backward as run_backward
from lowtide.measure.timing import environment
from lowtide.plan.floors import Floors
from lowtide.plan.plan import Plan
from lowtide.report.progress import showing
from lowtide.settings import settings
from lowtide.units import Budget, format_bytes

__all__ = ["Fitting", "capture_words", "from_the_compiler", "make_session", "run_saved"]

log = logging.getLogger("lowtide")
_ATTEMPTS = 4
_RESERVE = 0.05
"""Share of a device's free memory that budget "device" leaves alone."""


class Fitting:
    def __init__(
        self,
        model: nn.Module,
        args: Any,
        kwargs: Mapping[str, Any],
        options: Options,
        optimizer: torch.optim.Optimizer | None,
        loss: Callable[..., torch.Tensor] | None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"fit takes an nn.Module, not {type(model).__name__}")
        self.model, self.options = model, options
        self.args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        self.kwargs = dict(kwargs)
        self.optimizer = optimizer
        self.step = Step(model, self.args, self.kwargs, loss)
        self.whole: Graph | None = None
        """The whole step, once it has been seen."""
        self.broken: list[str] = []
        self.missed: dict[str, nn.Parameter] = {}
        _check_trains(model)
        batch = (self.args, self.kwargs)
        self.session = make_session(
            options, model_device(model), lambda: held_by_kind(model, batch, optimizer)
        )

    def run(self, *, verify: bool) -> Plan:
        previous = self.model._compiled_call_impl
        try:
            with preserved(self.model, (self.args, self.kwargs)), showing(self.session):
                return self.verified() if verify else self.planned(backward=False)
        except BaseException:
            detach(self.model, previous)
            raise
        finally:
            # The session lives on with the module; the batch must not.
            held = self.session.held()
            self.session.held = lambda: held

    def captured(self) -> Graph:
        """The whole step with costs and makers, unplanned; the module is left as it was."""
        previous = self.model._compiled_call_impl
        try:
            with preserved(self.model, (self.args, self.kwargs)), showing(self.session):
                self.surveyed(backward=False)
        finally:
            detach(self.model, previous)
        assert self.whole is not None
        return self.whole

    def planned(self, *, backward: bool) -> Plan:
        """Plan the step: the first time by running it, or its forward where that is enough; then from what was seen."""
        if self.whole is None:
            plan, ready = self.surveyed(backward=backward)
        else:
            plan, ready = self.session.plan_step(self.whole), False
        self.session.saved, self.session.trusted = plan, True
        self.session.fixed = plan.budget
        if not ready:
            self.session.begin()
            attach(self.model, self.session)
            with _capture_errors():
                self.run_step(backward=backward)
        return replace(plan, covers=coverage(plan, self.broken, self.missed))

    def surveyed(self, *, backward: bool) -> tuple[Plan, bool]:
        """The plan, and whether the module already runs it."""
        survey = Survey()
        self.session.begin(survey)
        attach(self.model, self.session)
        try:
            with _capture_errors():
                self.run_step(backward=backward, survey=survey)
        finally:
            self.session.watch.survey = None
        if not survey.seen:
            raise CaptureError(
                "the step ran, but no graph with a backward was captured from it: is the model's forward excluded from "
                "torch.compile (torch.compiler.disable), or does it contain only graph breaks?"
            )
        self.broken = [s.piece.broken for s in survey.seen if s.piece.broken]
        if len(survey.seen) == 1 and self.session.plans and not self.missed:
            (plan,) = self.session.plans
            self.whole = plan.graph
            return plan, True
        batch = (self.args, self.kwargs)
        known = held_storages(self.model, batch, self.optimizer)
        unseen = sum(p.nbytes for p in self.missed.values())
        graph = merge(survey.runs(), known)
        self.whole = self.session.with_held(graph, {Kind.GRADIENT: unseen} if unseen else None)
        check_graph(self.whole)
        return self.session.plan_step(self.whole), False

    def run_step(self, *, backward: bool, survey: Survey | None = None) -> None:
        """Forward, and backward if asked for or if the survey needs it to see how several graphs hang together."""
        output = self.step.forward()
        value = output if self.step.loss is None else self.step.loss(output, *self.args)
        if survey is not None:
            self.missed = uncovered(self.model, value, survey)
        if backward or (survey is not None and len(survey.seen) > 1):
            run_backward(value)
        if survey is not None:
            survey.step_ends()

    def verified(self) -> Plan:
        over = 0
        for _ in range(_ATTEMPTS):
            try:
                plan = self.planned(backward=True)
            except BudgetError as error:
                if not self.session.learnt:
                    raise
                raise self.too_tight(error) from None
            measured = self.measure()
            log.info(
                "measured peak %s, simulated %s", format_bytes(measured), format_bytes(plan.peak)
            )
            if measured <= plan.budget:
                plan = replace(plan, measured_peak=measured)
                return plan if plan.exact else replace(plan, gradient_error=self.error(plan))
            over = measured - plan.budget
            # Whatever the simulator missed is added to what it is told to leave free.
            self.session.learnt += max(measured - plan.peak - self.session.learnt, over) + 4096
        raise VerificationError(
            f"measured steps stayed {format_bytes(over)} over the budget in {_ATTEMPTS} attempts",
            floor=measured,
        )

    def measure(self) -> int:
        self.drop_gradients()
        held = sum(held_by_kind(self.model, (self.args, self.kwargs), self.optimizer).values())
        peak = measure_peak(self.step, held)
        self.drop_gradients()
        return peak

    def error(self, plan: Plan) -> float | None:
        """Of the gradients, where the unplanned step fits into memory to compare with."""
        fits = 2 * plan.unplanned_peak < available_bytes(model_device(self.model))
        found = gradient_error(self.step) if fits else None
        self.drop_gradients()
        return found

    def drop_gradients(self) -> None:
        for tensor in (*self.model.parameters(), *pytree.tree_leaves((self.args, self.kwargs))):
            if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
                tensor.grad = None

    def too_tight(self, error: BudgetError) -> BudgetError:
        floor = error.floor + self.session.learnt
        words = str(error).removeprefix(f"{error.code} ")
        return BudgetError(
            f"{words}\n     note  measured steps need {format_bytes(self.session.learnt)} more than simulated, so the floor "
            f"is {format_bytes(floor)}",
            floor=floor,
        )


def run_saved(model: nn.Module, plan: Plan) -> None:
    options = Options(budget=Budget(bytes=plan.budget), allow=plan.allow)
    session = make_session(options, model_device(model), dict)
    session.saved = plan
    attach(model, session)


def make_session(
    options: Options, device: torch.device, held: Callable[[], Mapping[str, int]]
) -> Session:
    key = environment(device)
    return Session(
        options,
        CostStore(settings().cost_dir, key),
        {"costs": key, "python": platform.python_version()},
        Floors(settings().floor_dir),
        held=held,
        free_bytes=lambda: int(available_bytes(device) * (1 - _RESERVE)),
    )


def _check_trains(model: nn.Module) -> None:
    if not any(p.requires_grad for p in model.parameters()):
        count = sum(1 for _ in model.parameters())
        raise NoGradientError(
            f"none of the model's {count} parameters needs a gradient, so there is no training step to plan. "
            "Call requires_grad_(True) on what is trained"
        )


@contextmanager
def _capture_errors() -> Iterator[None]:
    try:
        yield
    except (LowtideError, KeyboardInterrupt):
        raise
    except Exception as error:
        if from_the_compiler(error):
            raise CaptureError(capture_words(error)) from error
        raise


def from_the_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(
        ("torch._dynamo", "torch._inductor", "torch._functorch")
    )


def capture_words(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    what = lines[0] if lines else "no reason given"
    explained = next((x for x in lines if x.startswith("Explanation:")), "")
    more = f". {explained.removeprefix('Explanation:').strip()}" if explained else ""
    return f"the training step could not be captured{_user_line(error)}: {type(inner).__name__}: {what}{more}"


def _user_line(error: BaseException) -> str:
    """The innermost line outside PyTorch and Lowtide, from Dynamo's own stack or the exception's."""
    frames = [(f.filename, f.lineno, f.line) for f in getattr(error, "real_stack", None) or ()]
    if not frames:
        trace = traceback.extract_tb(error.__traceback__)
        frames = [(f.filename, f.lineno, f.line) for f in trace]
    ours = [f for f in frames if "/torch/" not in f[0] and "/lowtide/" not in f[0]]
    ours = [f for f in ours if not f[0].startswith("<")]
    return f" at {ours[-1][0]}:{ours[-1][1]} ({ours[-1][2]})" if ours else ""
