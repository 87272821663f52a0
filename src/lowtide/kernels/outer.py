"""A sum and the product of a column and a row, in one pass: see `rules/outer.py` for why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.loops import flat, loop, spread

__all__ = ["plus_outer", "plus_product"]


def plus_product(
    total: Tensor, product: Callable[..., Tensor], one: Tensor, other: Tensor
) -> Tensor:
    """As it was captured."""
    return total + product(one, other)


def plus_outer(total: Tensor, column: Tensor, row: Tensor, *, over: Tensor | None = None) -> Tensor:
    """`total` (..., m, n) plus column (..., m, 1) times row (..., 1, n). `over` is the sum itself, if it is not needed any more."""
    made = torch.empty_like(total) if over is None else over
    lines, width = total.numel() // max(total.shape[-1], 1), total.shape[-1]
    spread(
        _add, lines, width, total.shape[-2], width, flat(total), flat(column.contiguous()), flat(row.contiguous()), flat(made),
    )  # fmt: skip
    return made


@loop
def _add(first, last, rows, width, total, column, row, made):  # type: ignore[no-untyped-def]
    """The product is rounded before it is added."""
    for line in range(first, last):
        here, there = np.uint64(line * width), np.uint64(line // rows * width)
        factor = column[line]
        for k in range(np.uint64(width)):
            made[here + k] = total[here + k] + factor * row[there + k]
