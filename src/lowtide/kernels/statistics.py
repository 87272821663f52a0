"""A batch norm's output once more, from the statistics that its first run noted: one pass, no reduction, nothing updated."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["normalised"]


def normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor]:
    """As the first of what a batch norm returns.

    ATen's kernel for given statistics, told that the variance is one and with 1 / deviation in the weight instead: it then computes
    scale and shift of each channel from the same numbers, by the same code, as the training mode did from its own."""
    scale = rstd if weight is None else rstd * weight
    made, _, _ = torch.ops.aten._native_batch_norm_legit_no_training.default(
        x, scale, bias, mean, torch.ones_like(mean), 0.0, 0.0
    )
    return (made,)
