"""Parts of a convolution's backward by other kernels than the joint op's: see `rules/convolution.py` for why.

Each returns what `aten.convolution_backward` returns, with None for what it does not make, so that either can stand in for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "input_gradient",
    "output_padding",
    "parameter_gradients",
    "parameter_gradients_by_parts",
]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def input_gradient(
    gradient: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    missing: Sequence[int],
    groups: int,
) -> Gradients:
    """The transposed convolution of the output's gradient; `missing` as `output_padding` gives it."""
    made = torch.ops.aten.convolution.default(
        gradient, weight, None, stride, padding, dilation, True, missing, groups
    )
    return made, None, None


def output_padding(
    given: Sequence[int],
    made: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Rows of the input that the convolution's last window did not reach, per dimension."""
    reached = [
        (m - 1) * s - 2 * p + d * (k - 1) + 1
        for m, k, s, p, d in zip(made, kernel, stride, padding, dilation, strict=True)
    ]
    return [g - r for g, r in zip(given, reached, strict=True)]


def parameter_gradients(
    gradient: Tensor, given: Tensor, weight: Tensor, *rest: object
) -> Gradients:
    """From operands in any layout; the weight's gradient is laid out like the weight."""
    _, by_weight, by_bias = torch.ops.aten.convolution_backward.default(
        gradient, given, weight, *rest
    )
    if by_weight is not None and by_weight.stride() != weight.stride():
        by_weight = torch.empty_like(weight).copy_(by_weight)
    return None, by_weight, by_bias


def parameter_gradients_by_parts(
    gradients: Tensor,
    given: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *rest: object,
    wanted: Sequence[bool],
) -> Gradients:
    """From both operands in parts of their channels (`kernels/layout.py`); of the weight's gradient a block from each pair."""
    by_weight = torch.empty_like(weight)
    rows, columns = gradients.shape[2], given.shape[2]
    by_bias = []
    for row, one in enumerate(gradients):
        for column, other in enumerate(given):
            block = by_weight[row * rows :][:rows, column * columns :][:, :columns]
            mask = [False, True, wanted[2] and column == 0]
            sizes = [rows] if mask[2] else None
            _, made, bias = torch.ops.aten.convolution_backward.default(
                one, other, block, sizes, *rest, mask
            )
            block.copy_(made)
            by_bias += [bias] if mask[2] else []
    return None, by_weight if wanted[1] else None, torch.cat(by_bias) if by_bias else None
