"""Max-pool gradients without the pool's input, and from four bits per window instead of 64.

An index says where in its window the maximum was. ATen writes it as an int64 into the whole plane; counted from the window's corner it
is at most 15 for windows up to 4x4, and two of them fit a byte. Rows of windows begin at a byte of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.loops import flat, inline, loop, spread

__all__ = ["gradient_from_packed", "gradient_without_input", "pack_indices"]


def gradient_without_input(
    gradient: Tensor, indices: Tensor, sizes: Sequence[int], *geometry: object
) -> Tensor:
    """ATen's own; of the input it only asks for sizes, which a tensor of one element has as well."""
    shape = gradient.new_empty(1).expand(*sizes)
    return torch.ops.aten.max_pool2d_with_indices_backward.default(
        gradient, shape, *geometry, indices
    )


def _packed_for(indices: Tensor) -> Tensor:
    rows = indices.numel() // max(indices.shape[-1], 1)
    return torch.empty(rows, (indices.shape[-1] + 1) // 2, dtype=torch.uint8, device=indices.device)


@torch.library.custom_op("lowtide::pack_indices", mutates_args=())
def pack_indices(
    indices: Tensor,
    width: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """`width`: of a plane of the pool's input."""
    packed = _packed_for(indices)
    spread(
        _pack, len(packed), indices.shape[-1], flat(indices), indices.shape[-2], indices.shape[-1], width,
        kernel[1], stride[0], stride[1], padding[0], padding[1], packed.numpy(),
    )  # fmt: skip
    return packed


@pack_indices.register_fake
def _(
    indices: Tensor,
    width: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    return _packed_for(indices)


@torch.library.custom_op("lowtide::pool_gradient", mutates_args=())
def gradient_from_packed(
    gradient: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """Added up in ATen's order: window by window, plane by plane."""
    made = gradient.new_empty(sizes)
    planes = made.numel() // max(sizes[-1] * sizes[-2], 1)
    local = np.arange(16)
    places = local // kernel[1] * sizes[-1] + local % kernel[1]
    spread(
        _scatter, planes, sizes[-1] * sizes[-2], flat(gradient), gradient.shape[-2], gradient.shape[-1], packed.numpy(),
        places, stride[0], stride[1], padding[0], padding[1], flat(made), sizes[-2], sizes[-1],
    )  # fmt: skip
    return made


@gradient_from_packed.register_fake
def _(
    gradient: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    return gradient.new_empty(sizes)


@loop
def _pack(first, last, indices, rows, columns, width, kernel, down, along, above, left, packed):  # type: ignore[no-untyped-def]
    for row in range(first, last):
        start = row * columns
        corner = (row % rows * down - above) * width - left
        for pair in range(columns // 2):
            low = _local(indices[start + 2 * pair] - corner - 2 * pair * along, width, kernel)
            high = _local(
                indices[start + 2 * pair + 1] - corner - (2 * pair + 1) * along, width, kernel
            )
            packed[row, pair] = low | high << 4
        if columns % 2:
            last_one = indices[start + columns - 1] - corner - (columns - 1) * along
            packed[row, columns // 2] = _local(last_one, width, kernel)


@inline
def _local(place, width, kernel):  # type: ignore[no-untyped-def]
    """From the corner of the window: whole rows of the plane, at most three, then what is left. Without branches: where the maximum was
    nobody could predict."""
    whole = (place >= width) + (place >= 2 * width) + (place >= 3 * width)
    return place - whole * (width - kernel)


@loop
def _scatter(
    first,
    last,
    gradient,
    rows,
    columns,
    packed,
    places,
    down,
    along,
    above,
    left,
    made,
    height,
    width,
):  # type: ignore[no-untyped-def]
    for plane in range(first, last):
        start = plane * height * width
        for i in range(start, start + height * width):
            made[i] = 0
        for row in range(rows):
            line = plane * rows + row
            for column in range(columns):
                local = (packed[line, column // 2] >> (4 * (column % 2))) & 15
                corner = start + (row * down - above) * width + column * along - left
                made[corner + places[local]] += gradient[line * columns + column]
