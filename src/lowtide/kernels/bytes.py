"""A byte for each float: blocks of numbers as whole parts of their largest, and back.

256 numbers that lie together in memory share one scale, the largest magnitude among them over 127. Each is rounded up or down at
random with the odds of its remainder, so sums over many of them are not biased; the "random" numbers are a hash of the number and its
place, so nothing is drawn from torch's generators and the same tensor always gives the same bytes. A number comes back within one
scale of what it was. A block with an infinity or a NaN comes back as NaN: what a loss scaler looks for is not hidden.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.loops import COMPILED, flat, loop, spread

__all__ = ["BLOCK", "as_bytes", "from_bytes", "size_in_bytes"]

BLOCK = 256
_MOST = 127
_SCALE = 4
"""Bytes of a block's scale, a float32."""


def size_in_bytes(elements: int) -> int:
    return elements + _SCALE * -(-elements // BLOCK)


@torch.library.custom_op("lowtide::as_bytes", mutates_args=())
def as_bytes(x: Tensor) -> Tensor:
    """The scales of the blocks, then a byte for each element of a dense float32 tensor, in the order they lie in memory."""
    made = x.new_empty(size_in_bytes(x.numel()), dtype=torch.uint8)
    blocks = -(-x.numel() // BLOCK)
    scales, small = made[: _SCALE * blocks].view(torch.float32), made[_SCALE * blocks :].view(torch.int8)  # fmt: skip
    if COMPILED and x.device.type == "cpu":
        numbers = flat(x)
        spread(
            _shrink, blocks, BLOCK, numbers, numbers.view(np.uint32), scales.numpy(), small.numpy()
        )
        return made
    numbers = torch.nn.functional.pad(_in_order(x), (0, -x.numel() % BLOCK)).view(blocks, BLOCK)
    scales.copy_(numbers.abs().amax(1) / _MOST)
    scales[~scales.isfinite()] = torch.nan
    whole = (numbers / scales[:, None]).nan_to_num_(0.0)
    whole = (whole + _odds(numbers)).floor_().clamp_(-_MOST, _MOST)
    small.copy_(whole.view(-1)[: x.numel()])
    return made


@torch.library.custom_op("lowtide::from_bytes", mutates_args=())
def from_bytes(made: Tensor, like: list[int], strides: list[int]) -> Tensor:
    x = made.new_empty_strided(like, strides, dtype=torch.float32)
    blocks = -(-x.numel() // BLOCK)
    scales, small = made[: _SCALE * blocks].view(torch.float32), made[_SCALE * blocks :].view(torch.int8)  # fmt: skip
    if COMPILED and x.device.type == "cpu":
        spread(_grow, blocks, BLOCK, scales.numpy(), small.numpy(), flat(x))
        return x
    each = scales.repeat_interleave(BLOCK)[: x.numel()]
    _in_order(x).copy_(small * each)
    return x


@as_bytes.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(size_in_bytes(x.numel()), dtype=torch.uint8)


@from_bytes.register_fake
def _(made: Tensor, like: list[int], strides: list[int]) -> Tensor:
    return made.new_empty_strided(like, strides, dtype=torch.float32)


def _in_order(x: Tensor) -> Tensor:
    return x.as_strided((x.numel(),), (1,))


def _odds(numbers: Tensor) -> Tensor:
    """The same hash as in the loop, without unsigned integers."""
    places = torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)
    h = (numbers.view(torch.int32).long() & 0xFFFFFFFF) ^ (places * 0x9E3779B9 & 0xFFFFFFFF)
    h = (h ^ (h >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    return ((h ^ (h >> 15)) >> 8) * 2.0**-24


@loop
def _shrink(first, last, x, bits, scales, small):  # type: ignore[no-untyped-def]
    for block in range(first, last):
        start, stop = BLOCK * block, min(BLOCK * (block + 1), x.shape[0])
        most = np.float32(0.0)
        broken = False
        for i in range(start, stop):
            size = abs(x[i])
            most = max(most, size)
            broken |= not size <= np.float32(3.4028235e38)
        if broken:
            scales[block] = np.float32(np.nan)
            small[start:stop] = 0
            continue
        scale = most / np.float32(_MOST)
        scales[block] = scale
        for i in range(start, stop):
            h = bits[i] ^ np.uint32(np.uint32(i) * np.uint32(0x9E3779B9))
            h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
            odds = np.float32((h ^ (h >> np.uint32(15))) >> np.uint32(8)) * np.float32(2.0**-24)
            whole = np.float32(0.0) if scale == 0 else np.floor(x[i] / scale + odds)
            small[i] = np.int8(max(min(whole, np.float32(_MOST)), np.float32(-_MOST)))


@loop
def _grow(first, last, scales, small, x):  # type: ignore[no-untyped-def]
    for block in range(first, last):
        scale = scales[block]
        for i in range(BLOCK * block, min(BLOCK * (block + 1), x.shape[0])):
            x[i] = np.float32(small[i]) * scale
