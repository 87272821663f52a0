"""How far are a planned step's gradients from the exact ones? Measured, for plans that need not be exact."""

from __future__ import annotations

import torch

from lowtide.measure.compare import worst_error
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
    error, _ = worst_error(planned, exact)
    return error


def _gradients(step: Step) -> dict[str, torch.Tensor]:
    """Of one step, always with the same random numbers; the model is left as it was."""
    with preserved(step.model, (step.args, step.kwargs)):
        torch.manual_seed(_SEED)
        step()
        return {n: p.grad for n, p in step.model.named_parameters() if p.grad is not None}
