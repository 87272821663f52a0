"""A weight's gradient as a product over rows."""

from __future__ import annotations

from torch import Tensor

__all__ = ["product_over_rows"]


def product_over_rows(one: Tensor, other: Tensor) -> Tensor:
    return one.t() @ other
