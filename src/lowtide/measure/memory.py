"""What does a model hold before a step begins?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.ir.graph import Kind

__all__ = ["held_by_kind", "model_device"]


def model_device(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def held_by_kind(
    model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer | None
) -> dict[str, int]:
    """Bytes of distinct storages; a tensor counts once, under the first kind that has it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    fixed = [p for p in model.parameters() if not p.requires_grad] + list(model.buffers())
    seen: set[int] = set()
    held = {
        Kind.PARAMETER: _bytes(trained, seen),
        Kind.BUFFER: _bytes(fixed, seen),
        Kind.BATCH: _bytes(pytree.tree_leaves(batch), seen),
    }
    if optimizer is not None:
        held[Kind.OPTIMIZER] = _bytes(pytree.tree_leaves(dict(optimizer.state)), seen)
    return {str(kind): size for kind, size in held.items() if size}


def _bytes(things: Iterable[Any], seen: set[int]) -> int:
    total = 0
    for thing in things:
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                total += storage.nbytes()
    return total
