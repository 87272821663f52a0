"""Dropout as eager training on a CPU computes it, where the compiler's differs in the last bit.

Eager multiplies by a mask of ones that was divided by 1 - p in the tensor's own type. The compiler's dropout multiplies by 1 / (1 - p), rounded once:
for p = 0.15 in float32 that is another number, and in bfloat16's backward for nearly every p.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["compiled_scale", "dropout", "eager_scale"]


@torch.library.custom_op(
    "lowtide::dropout", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def dropout(given: Tensor, p: float, scale: float) -> tuple[Tensor, Tensor]:
    """What is left, scaled, and where. It draws what eager draws."""
    mask = torch.empty_like(given, dtype=torch.bool).bernoulli_(1 - p)
    return given.mul(mask).mul_(scale), mask


@dropout.register_fake
def _(given: Tensor, p: float, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(given), torch.empty_like(given, dtype=torch.bool)


def eager_scale(p: float, dtype: torch.dtype) -> float:
    """What eager multiplies by what is left."""
    with _disable_current_modes():
        return float(torch.ones((), dtype=dtype).div_(1 - p).item())


def compiled_scale(p: float, dtype: torch.dtype) -> float:
    """What the compiler's forward multiplies by."""
    with _disable_current_modes():
        return float(torch.tensor(1 / (1 - p), dtype=dtype).item())
