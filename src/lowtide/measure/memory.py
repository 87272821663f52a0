"""What does a model hold before a step begins?

Parameters, buffers, the batch and the optimizer's state, in bytes of distinct storages. A step is taken to start with gradients None, so
gradients that exist now are not counted: they are the step's own. An optimizer makes its state in its first update; before
that, the state is predicted by letting one of the same class and options update a few numbers of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.ir.graph import Kind

__all__ = ["held_by_all", "held_by_kind", "held_storages", "model_device", "predicted_state_bytes"]

log = logging.getLogger("lowtide")
_NUMBERS = 1024
"""Elements of the parameter that stands for all others; state tensors below half of it are counters, not state."""


def model_device(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def held_by_kind(
    model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None
) -> dict[str, int]:
    """Bytes of distinct storages; a tensor counts once, under the first kind that has it."""
    seen: set[int] = set()
    held = {
        kind: sum(size for _, size in _storages(things, seen))
        for kind, things in _parts(model, batch, optimizer).items()
    }
    if optimizer is not None and not held[Kind.OPTIMIZER]:
        held[Kind.OPTIMIZER] = predicted_state_bytes(optimizer)
    return {str(kind): size for kind, size in held.items() if size}


def held_by_all(
    modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], *, predict: bool
) -> dict[str, int]:
    """The same for everything there is in a program but the batch, and gradients that exist with it. `predict`: a state that is not there
    yet, too."""
    seen: set[int] = set()
    parameters = list({p for m in modules for p in m.parameters(recurse=False)})
    things = {
        Kind.PARAMETER: [p for p in parameters if p.requires_grad],
        Kind.BUFFER: [p for p in parameters if not p.requires_grad]
        + [b for m in modules for b in m.buffers(recurse=False)],
        Kind.GRADIENT: [p.grad for p in parameters if p.grad is not None],
    }
    held = {k: sum(size for _, size in _storages(v, seen)) for k, v in things.items()}
    state = 0
    for optimizer in optimizers:
        found = sum(s for _, s in _storages(pytree.tree_leaves(dict(optimizer.state)), seen))
        state += found or (predicted_state_bytes(optimizer) if predict else 0)
    held[Kind.OPTIMIZER] = state
    return {str(kind): size for kind, size in held.items() if size}


def held_storages(
    model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None
) -> frozenset[int]:
    """The addresses of the storages that `held_by_kind` counts."""
    seen: set[int] = set()
    for things in _parts(model, batch, optimizer).values():
        for _ in _storages(things, seen):
            pass
    return frozenset(seen)


def _parts(
    model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None
) -> dict[Kind, list[Any]]:
    parts = {
        Kind.PARAMETER: [p for p in model.parameters() if p.requires_grad],
        Kind.BUFFER: [*(p for p in model.parameters() if not p.requires_grad), *model.buffers()],
        Kind.BATCH: pytree.tree_leaves(batch),
    }
    if optimizer is not None:
        parts[Kind.OPTIMIZER] = pytree.tree_leaves(dict(optimizer.state))
    return parts


def _storages(things: Iterable[Any], seen: set[int]) -> Iterator[tuple[int, int]]:
    for thing in things:
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                yield storage._cdata, storage.nbytes()


def predicted_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What the first update will add; 0, and a line in the log, for an optimizer that cannot be tried out."""
    try:
        return sum(_group_bytes(optimizer, group) for group in optimizer.param_groups)
    except Exception as error:  # whatever a third party's optimizer may raise
        log.warning(
            "the state of %s is not counted before its first step: %s: %s",
            type(optimizer).__name__,
            type(error).__name__,
            error,
        )
        return 0


def _group_bytes(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> int:
    trained = [p for p in group["params"] if p.requires_grad]
    kinds: dict[tuple[torch.dtype, torch.device], int] = {}
    for parameter in trained:
        key = (parameter.dtype, parameter.device)
        kinds[key] = kinds.get(key, 0) + parameter.numel()
    return sum(
        int(numbers * _bytes_per_number(optimizer, group, dtype, device))
        for (dtype, device), numbers in kinds.items()
    )


def _bytes_per_number(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> float:
    """One update of a shadow: same class and options, a parameter of its own."""
    stand_in = nn.Parameter(torch.zeros(_NUMBERS // 32, 32, dtype=dtype, device=device))
    stand_in.grad = torch.zeros_like(stand_in)
    shadow = type(optimizer).__new__(type(optimizer))
    options = {k: v for k, v in group.items() if k != "params"}
    torch.optim.Optimizer.__init__(shadow, [{**options, "params": [stand_in]}], optimizer.defaults)
    for name, value in vars(optimizer).items():
        if name not in vars(shadow):
            setattr(shadow, name, value)
    with torch.enable_grad():
        shadow.step()
    state = [t for t in pytree.tree_leaves(dict(shadow.state)) if isinstance(t, torch.Tensor)]
    return sum(t.untyped_storage().nbytes() for t in state if 2 * t.numel() >= _NUMBERS) / _NUMBERS
