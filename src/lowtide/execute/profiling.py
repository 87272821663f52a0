"""How is one real step of a module observed, and everything put back as it was?

The model's own forward, loss and backward run, and then the optimizer's update where one is given. Buffers, gradients, the batch and
random generators are put back as `fit` does; what an update changes, parameters and state, is copied before and put back
afterwards, which takes as much memory again while the step runs (it is not counted). A compiled model runs one step unobserved first.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.errors import OptionError
from lowtide.execute.attach import session_of
from lowtide.execute.fitting import Fitting
from lowtide.execute.session import Options
from lowtide.ir.graph import Graph
from lowtide.measure.observe import Observation, compiled_modules
from lowtide.measure.preserve import preserved
from lowtide.measure.profiling import profile_of
from lowtide.measure.step import Step
from lowtide.plan.profile import Profile
from lowtide.units import Budget

__all__ = ["capture", "observe_steps", "profile_step", "with_graph"]

log = logging.getLogger("lowtide")


def profile_step(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[..., torch.Tensor] | None,
    *,
    steps: int,
    graph: bool,
) -> Profile:
    observed = observe_steps(model, args, kwargs, optimizer, loss, steps)
    if not graph:
        return observed
    return with_graph(observed, lambda: capture(model, args, kwargs, optimizer, loss))


def with_graph(profile: Profile, make: Callable[[], Graph]) -> Profile:
    """Not being able to capture is not an error: the profile says why it cannot be planned."""
    try:
        return replace(profile, graph=make())
    except Exception as error:  # whatever a compiler may raise about somebody's model
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        why = words.removeprefix(f"{getattr(error, 'code', '')} ")
        log.info("the step is not captured: %s", why)
        return replace(profile, environment={**profile.environment, "not captured": why})


def capture(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[..., torch.Tensor] | None,
) -> Graph:
    """The whole step with costs and makers: of a fitted module its plan's, else captured as `fit` does."""
    session = session_of(model)
    if session is not None and session.saved is not None:
        return session.saved.graph
    options = Options(budget=Budget(fraction=2.0), solver="keep all")
    plain = getattr(model, "_orig_mod", model)
    return Fitting(plain, args, kwargs, options, optimizer, loss).captured()


def observe_steps(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[..., torch.Tensor] | None,
    steps: int,
) -> Profile:
    if not isinstance(model, nn.Module):
        raise OptionError(f"profile takes an nn.Module, not {type(model).__name__}")
    if steps < 1:
        raise OptionError(f"steps={steps!r} must be at least 1")
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    step = Step(model, args, kwargs, loss)
    with preserved(model, (args, kwargs)), _undone(model, optimizer):
        if compiled_modules(model):
            step()
            _drop_gradients(model, (args, kwargs))
        gc.collect()
        optimizers = [optimizer] if optimizer is not None else []
        with Observation({"": model}, (args, kwargs), optimizers) as seen:
            for _ in range(steps):
                _drop_gradients(model, (args, kwargs))
                seen.step()
                step()
                if optimizer is not None:
                    optimizer.step()
        return profile_of(seen, _class_name(model))


def _class_name(model: nn.Module) -> str:
    return type(getattr(model, "_orig_mod", model)).__name__


def _drop_gradients(model: nn.Module, batch: Any) -> None:
    for tensor in (*model.parameters(), *pytree.tree_leaves(batch)):
        if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
            tensor.grad = None


@contextmanager
def _undone(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[None]:
    """Parameters and the optimizer's state are as before at the end."""
    if optimizer is None:
        yield
        return
    updated = {p for group in optimizer.param_groups for p in group["params"]}
    values = [(p, p.detach().clone()) for p in updated]
    state = {p: deepcopy(found) for p, found in optimizer.state.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)
        for parameter in [p for p in optimizer.state if p not in state]:
            del optimizer.state[parameter]
        for parameter, found in state.items():
            optimizer.state[parameter] = found
