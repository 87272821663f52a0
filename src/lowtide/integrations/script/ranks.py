"""How do the processes of one training (torchrun, DDP) come to the same decisions? Rank 0 makes them.

Without a process group there is one process, which decides alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lowtide.errors import LowtideError

__all__ = ["bucket_bytes", "from_rank_0", "is_first", "largest", "together"]

T = TypeVar("T")


def together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first() -> bool:
    """Also after the group is gone: torchrun tells each process its rank."""
    return dist.get_rank() == 0 if together() else os.environ.get("RANK", "0") == "0"


def from_rank_0(make: Callable[[], T]) -> T:
    """What rank 0 makes, or the error it meets, on every rank. All must call it."""
    if not together():
        return make()
    sent: list[T | LowtideError | None] = [None]
    if dist.get_rank() == 0:
        try:
            sent = [make()]
        except LowtideError as error:
            sent = [error]
    dist.broadcast_object_list(sent, 0)
    (found,) = sent
    if isinstance(found, LowtideError):
        raise found
    return found  # type: ignore[return-value]


def largest(number: int) -> int:
    """Of all ranks. All must call it."""
    if not together():
        return number
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, number)
    return max(found)


def bucket_bytes(module: nn.Module) -> int:
    """What DDP holds to reduce gradients in, unless those live there."""
    if not isinstance(module, DistributedDataParallel) or module.gradient_as_bucket_view:
        return 0
    return sum(p.nbytes for p in module.parameters() if p.requires_grad)
