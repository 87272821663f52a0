"""How is one module fitted? Capture, plan, measure a real step, plan again if reality disagrees, and undo all on failure."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lowtide.cost.store import CostStore
from lowtide.errors import BudgetError, CaptureError, LowtideError, NoGradientError, OptionError
from lowtide.execute.attach import attach, detach
from lowtide.execute.session import Options, Session
from lowtide.measure.memory import held_by_kind, model_device
from lowtide.measure.peak import available_bytes, measure_peak
from lowtide.measure.preserve import preserved
from lowtide.measure.step import Step
from lowtide.measure.timing import environment
from lowtide.plan.plan import Plan
from lowtide.settings import settings
from lowtide.units import format_bytes

__all__ = ["Fitting", "make_session", "run_saved"]

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
        _check_trains(model)
        self.session = make_session(
            options, model, lambda: held_by_kind(model, (self.args, self.kwargs), optimizer)
        )

    def run(self, *, verify: bool) -> Plan:
        previous = self.model._compiled_call_impl
        try:
            with preserved(self.model):
                return self.verified() if verify else self.planned()
        except BaseException:
            detach(self.model, previous)
            raise

    def planned(self) -> Plan:
        """Plan by running a first step, or its forward."""
        attach(self.model, self.session)
        self.session.plans.clear()
        try:
            self.step()
        except (LowtideError, KeyboardInterrupt):
            raise
        except Exception as error:
            if _from_the_compiler(error):
                raise CaptureError(_capture_words(error)) from error
            raise
        if not self.session.plans:
            raise CaptureError(
                "the step ran, but no graph with a backward was captured from it: is the model's forward excluded from "
                "torch.compile (torch.compiler.disable), or does it contain only graph breaks?"
            )
        return self.session.plans[0]

    def verified(self) -> Plan:
        over = 0
        for _ in range(_ATTEMPTS):
            try:
                plan = self.planned()
            except BudgetError as error:
                if not self.session.learnt:
                    raise
                raise self.too_tight(error) from None
            measured = self.measure()
            log.info(
                "measured peak %s, simulated %s", format_bytes(measured), format_bytes(plan.peak)
            )
            if measured <= plan.budget:
                return replace(plan, measured_peak=measured)
            over = measured - plan.budget
            # Whatever the simulator missed is added to what it is told to leave free.
            self.session.learnt += max(measured - plan.peak - self.session.learnt, over) + 4096
        raise BudgetError(
            f"measured steps stayed {format_bytes(over)} over the budget in {_ATTEMPTS} attempts",
            floor=measured,
        )

    def measure(self) -> int:
        for parameter in self.model.parameters():
            parameter.grad = None
        held = sum(held_by_kind(self.model, (self.args, self.kwargs), self.optimizer).values())
        peak = measure_peak(self.step, held)
        for parameter in self.model.parameters():
            parameter.grad = None
        return peak

    def too_tight(self, error: BudgetError) -> BudgetError:
        floor = error.floor + self.session.learnt
        words = str(error).removeprefix(f"{error.code} ")
        return BudgetError(
            f"{words}\n     note  measured steps need {format_bytes(self.session.learnt)} more than simulated, so the floor "
            f"is {format_bytes(floor)}",
            floor=floor,
        )


def run_saved(model: nn.Module, plan: Plan) -> None:
    from lowtide.units import Budget

    options = Options(budget=Budget(bytes=plan.budget), allow=plan.allow)
    session = make_session(options, model, dict)
    session.saved = plan
    attach(model, session)


def make_session(
    options: Options, model: nn.Module, held: Callable[[], Mapping[str, int]]
) -> Session:
    device = model_device(model)
    key = environment(device)
    return Session(
        options,
        CostStore(settings().cost_dir, key),
        {"costs": key, "python": platform.python_version()},
        held=held,
        free_bytes=lambda: sum(held().values()) + int(available_bytes(device) * (1 - _RESERVE)),
    )


def _check_trains(model: nn.Module) -> None:
    if not any(p.requires_grad for p in model.parameters()):
        count = sum(1 for _ in model.parameters())
        raise NoGradientError(
            f"none of the model's {count} parameters needs a gradient, so there is no training step to plan. "
            "Call requires_grad_(True) on what is trained"
        )


def _from_the_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith(
        ("torch._dynamo", "torch._inductor", "torch._functorch")
    )


def _capture_words(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", error)
    first = str(inner).strip().splitlines()[0] if str(inner).strip() else type(inner).__name__
    place = _user_line(error)
    return f"the training step could not be captured{place}: {type(inner).__name__}: {first}"


def _user_line(error: BaseException) -> str:
    """The user's line from Dynamo's own stack, or the innermost line outside PyTorch and Lowtide."""
    stack = getattr(error, "real_stack", None)
    if stack:
        frame = stack[-1]
        return f" at {frame.filename}:{frame.lineno} ({frame.line})"
    trace = error.__traceback__
    found = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/torch/" not in name and "/lowtide/" not in name and not name.startswith("<"):
            found = f" at {name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
