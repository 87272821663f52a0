"""Batch norm's backward a few channels at a time: see `rules/channels.py` for why."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["gradients_by_channels"]

_PARTS = 16


def gradients_by_channels(
    gradient: Tensor,
    given: Tensor,
    weight: Tensor | None,
    means: Tensor | None,
    variances: Tensor | None,
    batch_means: Tensor | None,
    batch_scales: Tensor | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
    *,
    over: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `aten.native_batch_norm_backward`; `over` is the gradient itself, if it is not needed any more."""
    made = torch.empty_like(gradient) if over is None else over
    by_weight: list[Tensor] = []
    by_bias: list[Tensor] = []
    channels = gradient.shape[1]
    each = max(1, channels // _PARTS)
    each_of = (weight, means, variances, batch_means, batch_scales)
    for first in range(0, channels, each):
        part = slice(first, first + each)
        tensors = (gradient[:, part].contiguous(), given[:, part].contiguous())
        numbers = (None if t is None else t[part] for t in each_of)
        one, *rest = torch.ops.aten.native_batch_norm_backward.default(
            *tensors, *numbers, train, eps, mask
        )
        made[:, part] = one
        del one, tensors  # before the next ones are made
        for found, parts in zip(rest, (by_weight, by_bias), strict=True):
            parts += [] if found is None else [found]
    return made, *(torch.cat(parts) if parts else None for parts in (by_weight, by_bias))
