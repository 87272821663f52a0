"""Max-pool gradients without the pool's input, from four bits per window instead of 64, and with those of a ReLU before the pool.

An index says where in its window the maximum was. ATen writes it as an int64 into the whole plane; counted from the window's corner it
is at most 15 for windows up to 4x4, and two of them fit a byte. Rows of windows begin at a byte of their own.

At the place of a window's maximum the pool's input is the pool's output. So where a ReLU before the pool blocks a gradient can be seen
there, before the gradient is spread, and neither the ReLU's output is read nor a plane of gradients written twice. Where windows overlap, all
that have their maximum in one place have the same one, and are blocked together. What adds up from nothing is zero, and so is what
ATen blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.loops import COMPILED, flat, inline, loop, spread

__all__ = ["LOOPED", "gradient_from_indices", "gradient_from_packed", "pack_indices"]

LOOPED = (torch.float32, torch.float64)
"""Others are left to ATen."""


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
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output: Tensor | None = None,
    low: float = 0.0,
    high: float | None = None,
) -> Tensor:
    """Added up in ATen's order: window by window, plane by plane. `sizes`: of what is made; `plane`: of a plane of the pool's input. Where the
    pool's `output`, if given, is at or below `low`, or at or above `high`, nothing is added."""
    made = gradient.new_empty(sizes)
    local = np.arange(16)
    places = local // kernel[1] * plane[1] + local % kernel[1]
    spread(
        _add_packed, made.numel() // max(plane[0] * plane[1], 1), plane[0] * plane[1], *_read(gradient, output, low, high),
        packed.numpy(), gradient.shape[-2], gradient.shape[-1], places, stride[0], stride[1], padding[0], padding[1],
        flat(made), plane[0], plane[1],
    )  # fmt: skip
    return made


@gradient_from_packed.register_fake
def _(
    gradient: Tensor,
    packed: Tensor,
    sizes: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output: Tensor | None = None,
    low: float = 0.0,
    high: float | None = None,
) -> Tensor:
    return gradient.new_empty(sizes)


@torch.library.custom_op("lowtide::pool_gradient_from_indices", mutates_args=())
def gradient_from_indices(
    gradient: Tensor,
    indices: Tensor,
    sizes: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    output: Tensor | None = None,
    low: float = 0.0,
    high: float | None = None,
) -> Tensor:
    """The same from ATen's indices; without loops by ATen, which of the input only asks for sizes, and these a tensor of one element has
    as well."""
    if COMPILED and gradient.device.type == "cpu" and gradient.dtype in LOOPED:
        made = gradient.new_empty(sizes)
        size, windows = plane[0] * plane[1], gradient.shape[-2] * gradient.shape[-1]
        spread(
            _add, made.numel() // max(size, 1), size, *_read(gradient, output, low, high), flat(indices), windows, flat(made), size,
        )  # fmt: skip
        return made
    shape = gradient.new_empty(1).expand(*gradient.shape[:-2], *plane)
    let = gradient if output is None else _let_through(gradient, output, low, high)
    whole = torch.ops.aten.max_pool2d_with_indices_backward.default(
        let, shape, kernel, stride, padding, dilation, ceil, indices
    )
    return whole.view(sizes)


@gradient_from_indices.register_fake
def _(
    gradient: Tensor,
    indices: Tensor,
    sizes: Sequence[int],
    plane: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    output: Tensor | None = None,
    low: float = 0.0,
    high: float | None = None,
) -> Tensor:
    return gradient.new_empty(sizes)


def _let_through(gradient: Tensor, output: Tensor, low: float, high: float | None) -> Tensor:
    if high is None:
        return torch.ops.aten.threshold_backward.default(gradient, output, low)
    return torch.ops.aten.hardtanh_backward.default(gradient, output, low, high)


def _read(
    gradient: Tensor, output: Tensor | None, low: float, high: float | None
) -> tuple[Any, ...]:
    """What `_passed` looks at, but for a place. A bound that is no number bounds nothing. NaN passes a ReLU and no hardtanh, as in ATen's
    vectors (its last few elements differ)."""
    values = flat(gradient)
    kind = values.dtype.type
    if output is None:
        return values, values, kind(np.nan), kind(np.nan), True
    return values, flat(output), kind(low), kind(np.nan if high is None else high), high is None


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


@inline
def _passed(gradient, decides, low, high, nan, window):  # type: ignore[no-untyped-def]
    """Both are read whatever the one says, so that there is no branch."""
    value, x = gradient[window], decides[window]
    passes = (not x <= low) & (not x >= high) & ((x == x) | nan)
    return value if passes else gradient.dtype.type(0)


# Indices without a sign need no look at whether they count from the end, and halving them is a shift.


@loop
def _add_packed(
    first,
    last,
    gradient,
    decides,
    low,
    high,
    nan,
    packed,
    rows,
    columns,
    places,
    down,
    along,
    above,
    left,
    made,
    height,
    width,
):  # type: ignore[no-untyped-def]
    two, one = np.uint64(2), np.uint64(1)
    for plane in range(first, last):
        start = plane * height * width
        for i in range(np.uint64(start), np.uint64(start + height * width)):
            made[i] = 0
        for row in range(rows):
            line = plane * rows + row
            window = np.uint64(line * columns)
            corner = start + (row * down - above) * width - left
            for pair in range(np.uint64(columns // 2)):
                both = packed[line, pair]
                # Never below zero, but when this is measured with places that were made up.
                place = max(corner + places[np.uint64(both & 15)], 0)
                made[np.uint64(place)] += _passed(gradient, decides, low, high, nan, window)
                place = max(corner + along + places[np.uint64(both >> 4)], 0)
                made[np.uint64(place)] += _passed(gradient, decides, low, high, nan, window + one)
                corner += 2 * along
                window += two
            if columns % 2:
                place = max(corner + places[packed[line, columns // 2] & 15], 0)
                made[np.uint64(place)] += _passed(gradient, decides, low, high, nan, window)


@loop
def _add(first, last, gradient, decides, low, high, nan, indices, windows, made, size):  # type: ignore[no-untyped-def]
    for plane in range(first, last):
        start = plane * size
        for i in range(np.uint64(start), np.uint64(start + size)):
            made[i] = 0
        for window in range(np.uint64(plane * windows), np.uint64((plane + 1) * windows)):
            place = np.uint64(start + indices[window])
            made[place] += _passed(gradient, decides, low, high, nan, window)
