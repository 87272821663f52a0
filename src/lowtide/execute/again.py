"""How does an op run a second time without changing anything else?

Most ops simply run again. Two kinds need care: a batch norm in training mode would update its running statistics once
more, so it is given fresh ones to update; a random op must draw the same numbers, so the generator is set to the state noted
before the first run and put back afterwards. (And its first run must not get lost.) A whole backward may run a second time,
too, so what it writes over is copied first if the caller keeps the graph. These are plain functions that the executor's fx graphs call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from lowtide.capture import meaning
from lowtide.capture.forms import Form

__all__ = ["again", "draw", "generator_state", "owned", "replay", "without_statistics"]


def generator_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def _set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


@fx.has_side_effect
def draw(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a random op for the first time. Called through a function with a side effect, because fx may take a random op for
    dead code when all its readers read a replay; then every later op would draw other numbers."""
    return target(*args, **kwargs)


def replay(
    target: Callable[..., Any], device: torch.device, state: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Run a random op with the numbers it drew before; the generator is left as it was found."""
    now = generator_state(device)
    _set_generator_state(device, state)
    try:
        return target(*args, **kwargs)
    finally:
        _set_generator_state(device, now)


def without_statistics(
    target: Callable[..., Any], dtype: torch.dtype, *args: Any, **kwargs: Any
) -> Any:
    """Run a training-mode batch norm on throw-away running statistics: the output does not depend on them."""
    passed = list(args)
    for position in meaning.RUNNING_STATISTICS:
        passed[position] = args[0].new_zeros(args[0].shape[1], dtype=dtype)
    return target(*passed, **kwargs)


def owned(saved: torch.Tensor) -> torch.Tensor:
    """What forward saved, to be written over: itself, or a copy where the caller keeps the graph and may run backward again."""
    keep = torch._C._autograd._get_current_graph_task_keep_graph()
    return saved.clone() if keep else saved


def again(node: fx.Node, form: Form) -> Form:
    """What to call so that a captured op runs once more."""
    if not meaning.updates_statistics(node):
        return form
    statistics = form.args[meaning.RUNNING_STATISTICS[0]]
    dtype = statistics.meta["val"].dtype if isinstance(statistics, fx.Node) else torch.float32
    args = list(form.args)
    for position in meaning.RUNNING_STATISTICS:
        args[position] = None
    return Form(without_statistics, (form.target, dtype, *args), form.kwargs)
