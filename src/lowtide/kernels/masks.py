"""One bit per element: on which side of a threshold did it fall, was it dropped? And gradients from these bits.

What the backward of a ReLU, a hardtanh or a dropout asks of a float tensor or a byte mask is one bit of each element. Packed
eight to a byte in the order the elements lie in memory: the gradient must lie in the same order, and both must be dense.

Each op is one pass over memory on the CPU; elsewhere, and without numba, it is made of torch ops.
"""

from __future__ import annotations

import torch
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


def _bits_for(x: Tensor) -> Tensor:
    return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8, device=x.device)


@torch.library.custom_op("lowtide::pack_above", mutates_args=())
def pack_above(x: Tensor, threshold: float) -> Tensor:
    """Not at or below the threshold: NaN counts as above, as in ATen's threshold."""
    if not _looped(x):
        return _pack(~(x <= threshold))
    bits = _bits_for(x)
    values = flat(x)
    spread(_pack_above, len(bits), values, values.dtype.type(threshold), bits.numpy())
    return bits


@torch.library.custom_op("lowtide::pack_inside", mutates_args=())
def pack_inside(x: Tensor, low: float, high: float) -> Tensor:
    """Above `low` and below `high`; NaN is not, as in ATen's vectors (its last few elements differ)."""
    if not _looped(x):
        return _pack((x > low) & (x < high))
    bits = _bits_for(x)
    values = flat(x)
    kind = values.dtype.type
    spread(_pack_inside, len(bits), values, kind(low), kind(high), bits.numpy())
    return bits


@torch.library.custom_op("lowtide::pack_true", mutates_args=())
def pack_true(mask: Tensor) -> Tensor:
    if not COMPILED or mask.device.type != "cpu":
        return _pack(mask)
    bits = _bits_for(mask)
    spread(_pack_above, len(bits), flat(mask.view(torch.uint8)), 0, bits.numpy())
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
    spread(_masked, len(bits), flat(gradient.view(whole)), bits.numpy(), flat(made.view(whole)))
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
    kind = values.dtype.type
    spread(_scaled, len(bits), values, bits.numpy(), kind(on), kind(off), flat(made))
    return made


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


@loop
def _masked(first, last, gradient, bits, made):  # type: ignore[no-untyped-def]
    for byte in range(first, last):
        start, packed = 8 * byte, bits[byte]
        if start + 8 <= made.shape[0]:
            for k in range(8):
                made[start + k] = gradient[start + k] if packed >> k & 1 else 0
        else:
            for k in range(made.shape[0] - start):
                made[start + k] = gradient[start + k] if packed >> k & 1 else 0


@loop
def _scaled(first, last, gradient, bits, on, off, made):  # type: ignore[no-untyped-def]
    for byte in range(first, last):
        start, packed = 8 * byte, bits[byte]
        if start + 8 <= made.shape[0]:
            for k in range(8):
                made[start + k] = gradient[start + k] * (on if packed >> k & 1 else off)
        else:
            for k in range(made.shape[0] - start):
                made[start + k] = gradient[start + k] * (on if packed >> k & 1 else off)
