"""Images from channels first to channels last, or to parts of their channels, and back, into other memory or in the same.

Each sample's numbers stay where they are as a block, so in the same memory a copy of one sample is all that is needed besides. A sample is
turned in bands that stay in a core's first cache. Of images in parts, the first channels of all samples come first: each part is a plain tensor
by itself.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowtide.kernels.loops import COMPILED, loop, spread

__all__ = [
    "channels_first", "channels_first_over", "channels_last", "channels_last_over", "in_parts", "in_parts_over", "turn", "whole",
    "whole_over",
]  # fmt: skip

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""To copy elements without looking at them, by their bytes."""
_BAND = 128
"""Of a sample's longer side, what is turned together: long enough that the lines of memory to come are fetched ahead."""


def channels_last(images: Tensor) -> Tensor:
    """A copy of plain contiguous images."""
    made = torch.empty_like(images, memory_format=torch.channels_last)
    turn(images.flatten(2), _pixels(made))
    return made


def channels_first(images: Tensor) -> Tensor:
    """A copy of channels-last images."""
    made = torch.empty_like(images, memory_format=torch.contiguous_format)
    turn(_pixels(images), made.flatten(2))
    return made


def channels_last_over(images: Tensor) -> Tensor:
    """From plain contiguous images; these are not there any more."""
    count, channels, height, width = images.shape
    size = channels * height * width
    made = images.as_strided(images.shape, (size, 1, width * channels, channels))
    _turn_over(images.view(count, channels, height * width), _pixels(made))
    return made


def channels_first_over(images: Tensor) -> Tensor:
    """From channels-last images; these are not there any more."""
    count, channels, height, width = images.shape
    made = images.as_strided((count, channels, height * width), (channels * height * width, height * width, 1))  # fmt: skip
    _turn_over(_pixels(images), made)
    return made.view(images.shape)


def in_parts(images: Tensor, count: int) -> Tensor:
    """A copy of plain contiguous images: part by part, all samples."""
    return images.unflatten(1, (count, -1)).transpose(0, 1).contiguous()


def whole(parts: Tensor) -> Tensor:
    """A copy of images in parts, plain again."""
    return parts.transpose(0, 1).flatten(1, 2).contiguous()


def in_parts_over(images: Tensor, count: int) -> Tensor:
    """From plain contiguous images; these are not there any more."""
    samples, channels, height, width = images.shape
    _swap_over(images.view(samples, count, channels // count * height * width))
    return images.view(count, samples, channels // count, height, width)


def whole_over(parts: Tensor) -> Tensor:
    """From images in parts; these are not there any more."""
    count, samples, channels, height, width = parts.shape
    _swap_over(parts.view(count, samples, channels * height * width))
    return parts.view(samples, count * channels, height, width)


def _swap_over(blocks: Tensor) -> None:
    """Exchange the first two axes, a cycle of blocks after another, beside a copy of one."""
    rows, columns = blocks.shape[:2]
    flat = blocks.flatten(0, 1)
    done: set[int] = set()
    for start in range(rows * columns):
        if start in done:
            continue
        first = flat[start].clone()
        place = start
        while True:
            done.add(place)
            source = place % rows * columns + place // rows
            if source == start:
                break
            flat[place].copy_(flat[source])
            place = source
        flat[place].copy_(first)


def _pixels(images: Tensor) -> Tensor:
    """Of channels-last images, each sample as a matrix with a row for each pixel."""
    count, channels, height, width = images.shape
    pixels = height * width
    return images.as_strided((count, pixels, channels), (pixels * channels, channels, 1))


def _turn_over(samples: Tensor, turned: Tensor) -> None:
    """Both are in the same memory."""
    one = torch.empty_like(turned[:1])
    for index in range(len(samples)):
        turn(samples[index : index + 1], one)
        turned[index : index + 1].copy_(one)


@torch.library.custom_op("lowtide::turn", mutates_args=("turned",))
def turn(samples: Tensor, turned: Tensor) -> None:
    """Transpose each of the matrices."""
    count, rows, columns = samples.shape
    if not COMPILED or samples.device.type != "cpu" or samples.element_size() not in _WHOLE:
        turned.copy_(samples.mT)
        return
    kind = _WHOLE[samples.element_size()]
    bands = -(-max(rows, columns) // _BAND)
    each = _BAND * min(rows, columns)
    spread(_turn, count * bands, each, bands, samples.view(kind).numpy(), turned.view(kind).numpy())


@loop
def _turn(
    first: int, last: int, bands: int, samples: NDArray[np.int32], turned: NDArray[np.int32]
) -> None:  # pragma: no cover
    """A band of the longer side after another, of one matrix after another."""
    _, rows, columns = samples.shape
    for number in range(first, last):
        one, other = samples[number // bands], turned[number // bands]
        start = number % bands * _BAND
        if columns >= rows:
            end = min(start + _BAND, columns)
            for row in range(rows):
                for column in range(start, end):
                    other[column, row] = one[row, column]
        else:
            end = min(start + _BAND, rows)
            for column in range(columns):
                for row in range(start, end):
                    other[column, row] = one[row, column]
