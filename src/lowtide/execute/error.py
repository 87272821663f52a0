"""How far are a planned step's gradients from the exact ones? Measured, for plans that need not be exact."""

from __future__ import annotations

import math

import torch

from lowtide.measure.preserve import preserved
from lowtide.measure.step import Step

__all__ = ["gradient_error"]

_SEED = 0


def gradient_error(step: Step) -> float:
    """The worst of all parameters: the norm of the difference to the step of the model as it is without a plan, by the norm of that.

    Runs both, so it needs the memory of the unplanned step."""
    planned = _gradients(step)
    through = step.model._compiled_call_impl
    step.model._compiled_call_impl = None
    try:
        exact = _gradients(step)
    finally:
        step.model._compiled_call_impl = through
    # What rounding leaves of a gradient that is zero on paper is no error.
    small = 1e-6 * math.sqrt(sum(float(g.double().norm()) ** 2 for g in exact.values()))
    return max((_error(planned.get(n), g, small) for n, g in exact.items()), default=0.0)


def _gradients(step: Step) -> dict[str, torch.Tensor]:
    """Of one step, always with the same random numbers; the model is left as it was."""
    with preserved(step.model, (step.args, step.kwargs)):
        torch.manual_seed(_SEED)
        step()
        return {n: p.grad for n, p in step.model.named_parameters() if p.grad is not None}


def _error(found: torch.Tensor | None, exact: torch.Tensor, small: float) -> float:
    if found is None:
        return math.inf
    size = float(exact.double().norm()) + small
    return float((found.double() - exact.double()).norm()) / size if size else 0.0
