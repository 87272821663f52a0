"""One bit per element: on which side of a threshold did it fall, was it dropped? And gradients from these bits.

What the backward of a ReLU, a hardtanh or a dropout asks of a float tensor or a byte mask is one bit of each element. Packed
eight to a byte in the order the elements lie in memory: the gradient must lie in the same order, and both must be dense.

Each op is one pass over memory on the CPU; elsewhere, and without numba, it is made of torch ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowtide.kernels.loops import COMPILED, flat, loop, spread

__all__ = [
    "masked",
    "masked_over",
    "pack_above",
    "pack_inside",
    "pack_true",
    "scaled",
    "scaled_over",
]

_LOOPED = (torch.float32, torch.float64)
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""To copy elements without looking at them, by their bytes."""
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""Of each byte, the lowest first."""


_TO_THE_TOP = np.uint64(0x0102040810204080)


def _bits_for(x: Tensor) -> Tensor:
    return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device=x.device)


@torch.library.custom_op("lowtide::pack_above", mutates_args=())
def pack_above(x: Tensor, threshold: float) -> Tensor:
    """Not at or below the threshold: NaN counts as above, as in ATen's threshold."""
    if not _looped(x):
        return _pack(~(x <= threshold))
    bits = _bits_for(x)
    values = flat(x)
    spread(_pack_above, len(bits), 8, values, values.dtype.type(threshold), bits.numpy())
    return bits


@torch.library.custom_op("lowtide::pack_inside", mutates_args=())
def pack_inside(x: Tensor, low: float, high: float) -> Tensor:
    """Above `low` and below `high`; NaN is not, as in ATen's vectors (its last few elements differ)."""
    if not _looped(x):
        return _pack((x > low) & (x < high))
    bits = _bits_for(x)
    values = flat(x)
    kind = values.dtype.type
    spread(_pack_inside, len(bits), 8, values, kind(low), kind(high), bits.numpy())
    return bits


@torch.library.custom_op("lowtide::pack_true", mutates_args=())
def pack_true(mask: Tensor) -> Tensor:
    if not COMPILED or mask.device.type != "cpu":
        return _pack(mask)
    bits = _bits_for(mask)
    values, packed = flat(mask.view(torch.uint8)), bits.numpy()
    whole = len(values) // 8
    spread(_pack_true, whole, 8, values[: 8 * whole].view(np.uint64), packed)
    if len(values) % 8:
        packed[whole] = np.packbits(values[8 * whole :], bitorder="little")[0]
    return bits


@torch.library.custom_op("lowtide::masked", mutates_args=())
def masked(gradient: Tensor, bits: Tensor) -> Tensor:
    """The gradient where the bit is set, else zero."""
    return _masked_into(torch.empty_like(gradient), gradient, bits)


def masked_over(gradient: Tensor, bits: Tensor) -> Tensor:
    """The same, written over the gradient."""
    return _masked_into(gradient, gradient, bits)


def _masked_into(made: Tensor, gradient: Tensor, bits: Tensor) -> Tensor:
    if not COMPILED or gradient.device.type != "cpu":
        return made.copy_(torch.where(_unpacked(bits, gradient), gradient, 0))
    whole = _WHOLE[gradient.element_size()]
    given, new = flat(gradient.view(whole)), flat(made.view(whole))
    _by_eights(_masked, given, bits.numpy(), _kept(given.dtype), new)
    return made


@torch.library.custom_op("lowtide::scaled", mutates_args=())
def scaled(gradient: Tensor, bits: Tensor, on: float, off: float) -> Tensor:
    """The gradient times one number where the bit is set, else times the other."""
    return _scaled_into(torch.empty_like(gradient), gradient, bits, on, off)


def scaled_over(gradient: Tensor, bits: Tensor, on: float, off: float) -> Tensor:
    """The same, written over the gradient."""
    return _scaled_into(gradient, gradient, bits, on, off)


def _scaled_into(made: Tensor, gradient: Tensor, bits: Tensor, on: float, off: float) -> Tensor:
    if not _looped(gradient):
        return made.copy_(torch.where(_unpacked(bits, gradient), gradient * on, gradient * off))
    values = flat(gradient)
    table = np.where(_BITS, on, off).astype(values.dtype)
    _by_eights(_scaled, values, bits.numpy(), table, flat(made))
    return made


def _by_eights(
    function: Callable[..., None],
    given: NDArray[Any],
    bits: NDArray[Any],
    table: NDArray[Any],
    made: NDArray[Any],
) -> None:
    """The loop over all whole bytes; then over the last one, by way of eights of its own."""
    whole, rest = len(given) // 8, len(given) % 8
    eights = [array[: 8 * whole].reshape(-1, 8) for array in (given, made)]
    spread(function, whole, 8, eights[0], bits, table, eights[1])
    if rest:
        last = np.zeros((1, 8), given.dtype)
        last[0, :rest] = given[8 * whole :]
        function(0, 1, last, bits[whole:], table, last)
        made[8 * whole :] = last[0, :rest]


@cache
def _kept(kind: np.dtype[Any]) -> NDArray[Any]:
    """Ones in all places of what is kept."""
    return -_BITS.astype(kind)


@pack_above.register_fake
def _(x: Tensor, threshold: float) -> Tensor:
    return _bits_for(x)


@pack_inside.register_fake
def _(x: Tensor, low: float, high: float) -> Tensor:
    return _bits_for(x)


@pack_true.register_fake
def _(mask: Tensor) -> Tensor:
    return _bits_for(mask)


@masked.register_fake
def _(gradient: Tensor, bits: Tensor) -> Tensor:
    return torch.empty_like(gradient)


@scaled.register_fake
def _(gradient: Tensor, bits: Tensor, on: float, off: float) -> Tensor:
    return torch.empty_like(gradient)


def _looped(x: Tensor) -> bool:
    return COMPILED and x.device.type == "cpu" and x.dtype in _LOOPED


# Without loops. Elements are taken in the order they lie in memory here too.


def _pack(mask: Tensor) -> Tensor:
    ones = mask.as_strided((mask.numel(),), (1,)).to(torch.uint8)
    ones = torch.nn.functional.pad(ones, (0, -len(ones) % 8)).view(-1, 8)
    places = torch.tensor([1 << k for k in range(8)], dtype=torch.uint8, device=mask.device)
    return (ones * places).sum(1, dtype=torch.uint8)


def _unpacked(bits: Tensor, like: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    ones = (bits[:, None] >> places & 1).to(torch.bool).view(-1)[: like.numel()]
    return ones.as_strided(like.shape, like.stride())


# The loops, over bytes of eight elements. The last may be short.


@loop
def _pack_above(first, last, x, threshold, bits):  # type: ignore[no-untyped-def]
    for byte in range(first, last):
        start, packed = 8 * byte, 0
        if start + 8 <= x.shape[0]:
            for k in range(8):
                packed |= (not x[start + k] <= threshold) << k
        else:
            for k in range(x.shape[0] - start):
                packed |= (not x[start + k] <= threshold) << k
        bits[byte] = packed


@loop
def _pack_true(first, last, words, bits):  # type: ignore[no-untyped-def]
    """Eight bytes that are 0 or 1 at a time: each factor's bit moves another one of them into the highest byte, and no two meet."""
    for byte in range(np.uint64(first), np.uint64(last)):
        bits[byte] = (words[byte] * _TO_THE_TOP) >> np.uint64(56)


@loop
def _pack_inside(first, last, x, low, high, bits):  # type: ignore[no-untyped-def]
    for byte in range(first, last):
        start, packed = 8 * byte, 0
        if start + 8 <= x.shape[0]:
            for k in range(8):
                value = x[start + k]
                packed |= (value > low and value < high) << k
        else:
            for k in range(x.shape[0] - start):
                value = x[start + k]
                packed |= (value > low and value < high) << k
        bits[byte] = packed


# For each byte its eight factors, from a table: one load instead of eight shifts, which compilers do not vectorise. All eight are read before
# one is written, because `made` may be the gradient. Indices without a sign need no look at whether they count from the end.


@loop
def _masked(first, last, gradient, bits, table, made):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(first), np.uint64(last)):
        p = np.uint64(bits[i])
        a, b = gradient[i, 0] & table[p, 0], gradient[i, 1] & table[p, 1]
        c, d = gradient[i, 2] & table[p, 2], gradient[i, 3] & table[p, 3]
        e, f = gradient[i, 4] & table[p, 4], gradient[i, 5] & table[p, 5]
        g, h = gradient[i, 6] & table[p, 6], gradient[i, 7] & table[p, 7]
        made[i, 0], made[i, 1], made[i, 2], made[i, 3] = a, b, c, d
        made[i, 4], made[i, 5], made[i, 6], made[i, 7] = e, f, g, h


@loop
def _scaled(first, last, gradient, bits, table, made):  # type: ignore[no-untyped-def]
    for i in range(np.uint64(first), np.uint64(last)):
        p = np.uint64(bits[i])
        a, b = gradient[i, 0] * table[p, 0], gradient[i, 1] * table[p, 1]
        c, d = gradient[i, 2] * table[p, 2], gradient[i, 3] * table[p, 3]
        e, f = gradient[i, 4] * table[p, 4], gradient[i, 5] * table[p, 5]
        g, h = gradient[i, 6] * table[p, 6], gradient[i, 7] * table[p, 7]
        made[i, 0], made[i, 1], made[i, 2], made[i, 3] = a, b, c, d
        made[i, 4], made[i, 5], made[i, 6], made[i, 7] = e, f, g, h
