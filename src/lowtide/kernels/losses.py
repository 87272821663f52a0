"""A classification loss from the one number that it reads of each row."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["picked", "picked_loss"]


def picked(rows: Tensor, target: Tensor) -> Tensor:
    """The number at each row's class; of rows that are not counted, some number."""
    return rows.gather(1, target.clamp(min=0).unsqueeze(1))


def picked_loss(
    numbers: Tensor, target: Tensor, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    """What `aten.nll_loss_forward` returns. It adds in the same order, because it is what is called: for rows with one class."""
    only = target.clamp(max=0)  # what is below 0 is `ignored`, or wrong: then it says so
    made: tuple[Tensor, Tensor] = torch.ops.aten.nll_loss_forward.default(
        numbers, only, None, reduction, ignored
    )
    return made
