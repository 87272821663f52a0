"""Matrix products in other words: a weight's gradient as a product over rows, and products the other way round."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["product_over_rows", "turned", "turned_plus"]


def product_over_rows(one: Tensor, other: Tensor) -> Tensor:
    return one.t() @ other


def turned(one: Tensor, other: Tensor) -> Tensor:
    """one @ other, made as its transpose."""
    return torch.mm(other.t(), one.t()).t().contiguous()


def turned_plus(bias: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The same plus a bias, in the pass that turns it."""
    made = one.new_empty(one.shape[0], other.shape[1])
    return torch.add(torch.mm(other.t(), one.t()).t(), bias, out=made)
