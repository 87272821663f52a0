"""A tensor without its zeros: a bit for each element, set where it is not zero, then the numbers that are not, one after another.

Elements are taken in the order they lie in memory; the tensor must be dense. Zero is what has no bit set: -0.0 and NaN are numbers like any other,
so the same bits come back.

Two passes: the first counts, so that what is made is as large as it must be and each stretch of elements knows where its numbers go; the second
packs. Backward counts the bits, a thirty-second of the bytes, and unpacks in one pass. How a vector is packed at once says
`kernels/sparse_vectors.py`; where it cannot be, a loop without branches does it. Elsewhere than on the CPU, and without numba, it is made of torch ops,
with temporaries as large as the tensor; on CUDA these were never run on hardware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowtide.kernels.loops import COMPILED, flat, loop, spread
from lowtide.kernels.sparse_vectors import VECTORS, vector_counted, vector_packed, vector_unpacked
from lowtide.rules.sparse import PARTS, packed_bytes
from lowtide.units import format_bytes

__all__ = ["nonzero", "with_zeros", "without_zeros"]

log = logging.getLogger("lowtide")

_BLOCK = 2**15
"""Elements that are counted together."""
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Of the same bytes: to copy elements, and compare them with zero, as they are."""
_WORDS = _BLOCK // 64
_TWOS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_EIGHTS, _EACH = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
Numbers = NDArray[np.unsignedinteger]


@torch.library.custom_op("lowtide::without_zeros", mutates_args=())
def without_zeros(x: Tensor, parts: int) -> Tensor:
    """`parts`: sixteenths of the elements for which there is room in the plan. More are packed as well, and a warning says so."""
    if not _looped(x):
        numbers = _in_order(x)
        some = numbers != 0
        kept = numbers[some]
        _tell(x, len(kept), parts)
        return torch.cat((_bits_of(some), kept.view(torch.uint8)))
    given, wide = _unsigned(x), _wide(x)
    starts = _starts(_counted, given, wide)
    _tell(x, int(starts[-1]), parts)
    size = _bitmap_bytes(x.numel())
    made = x.new_empty(size + int(starts[-1]) * x.element_size(), dtype=torch.uint8)
    bits, packed = made.numpy()[:size], made.numpy()[size:].view(given.dtype)
    bits[-8:] = 0
    spread(_pack, len(starts) - 1, _BLOCK, given, wide, starts, bits, packed)
    return made


@torch.library.custom_op("lowtide::with_zeros", mutates_args=())
def with_zeros(small: Tensor, like: list[int], strides: list[int], dtype: torch.dtype) -> Tensor:
    x = small.new_empty_strided(like, strides, dtype=dtype)
    size = _bitmap_bytes(x.numel())
    bits, packed = small[:size], small[size:]
    if not _looped(x):
        made = _in_order(x).zero_()
        made[_some(bits)[: x.numel()]] = packed.view(made.dtype)
        return x
    marks = bits.numpy()
    starts = _starts(_ones, marks.view(np.uint64), False, _WORDS)
    made = _unsigned(x)
    numbers = packed.numpy().view(made.dtype)
    spread(_unpack, len(starts) - 1, _BLOCK, marks, _wide(x), starts, numbers, made)
    return x


@without_zeros.register_fake
def _(x: Tensor, parts: int) -> Tensor:
    """How many there are depends on the values: of as many as are expected."""
    return x.new_empty(packed_bytes(x.numel(), x.element_size(), parts), dtype=torch.uint8)


@with_zeros.register_fake
def _(small: Tensor, like: list[int], strides: list[int], dtype: torch.dtype) -> Tensor:
    return small.new_empty_strided(like, strides, dtype=dtype)


def nonzero(x: Tensor) -> int:
    """How many elements would be packed."""
    return int(torch.count_nonzero(x.view(_WHOLE[x.element_size()])))


def _bitmap_bytes(elements: int) -> int:
    return packed_bytes(elements, 0, 0)


def _looped(x: Tensor) -> bool:
    return COMPILED and x.device.type == "cpu"


def _wide(x: Tensor) -> bool:
    return x.element_size() in VECTORS


def _in_order(x: Tensor) -> Tensor:
    return x.view(_WHOLE[x.element_size()]).as_strided((x.numel(),), (1,))


def _unsigned(x: Tensor) -> Numbers:
    made: Numbers = flat(x.view(_WHOLE[x.element_size()])).view(f"u{x.element_size()}")
    return made


def _starts(
    count: Callable[..., None], numbers: Numbers, wide: bool, each: int = _BLOCK
) -> NDArray[np.int64]:
    """Where the numbers of each block begin among the packed ones, and where the last one's end."""
    starts = np.zeros(1 - (-len(numbers) // each), np.int64)
    spread(count, len(starts) - 1, each, numbers, wide, starts[1:])
    return np.cumsum(starts, out=starts)


def _tell(x: Tensor, count: int, parts: int) -> None:
    """If it is more than planned, once for a shape."""
    room = -(-x.numel() * parts // PARTS)
    if count > room:
        more = (count - room) * x.element_size()
        _warn(tuple(x.shape), count / x.numel(), parts / PARTS, format_bytes(more))


_told: set[tuple[int, ...]] = set()


def _warn(shape: tuple[int, ...], share: float, planned: float, more: str) -> None:
    if shape in _told:
        return
    _told.add(shape)
    log.warning(
        "of an activation of shape %s, %.0f%% are not zero, and the plan has room for %.0f%%: it takes %s that were not planned for. "
        "Fit again on a batch like this one",
        list(shape), 100 * share, 100 * planned, more,
    )  # fmt: skip


# Without loops.


def _bits_of(some: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(some.to(torch.uint8), (0, -len(some) % 64)).view(-1, 8)
    places = torch.tensor([1 << k for k in range(8)], dtype=torch.uint8, device=some.device)
    return (padded * places).sum(1, dtype=torch.uint8)


def _some(bits: Tensor) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits[:, None] >> places & 1).to(torch.bool).view(-1)


# The loops, over blocks. What is left of the last one goes one by one. Indices have no sign, so nobody looks whether they count from the end;
# all of them, because a sum with one that has a sign would be a float.


@loop
def _counted(first, last, x, wide, counts):  # type: ignore[no-untyped-def]
    length, block_size, size = np.uint64(x.shape[0]), np.uint64(_BLOCK), np.uint64(x.itemsize)
    each, one = np.uint64(64) // size, np.uint64(1)
    for block in range(np.uint64(first), np.uint64(last)):
        i, stop = block * block_size, min((block + one) * block_size, length)
        found = np.uint64(0)
        if wide:
            while i + each <= stop:
                found += vector_counted(x, x.ctypes.data + i * size)
                i += each
        for k in range(i, stop):
            found += np.uint64(x[k] != 0)
        counts[block] = found


@loop
def _ones(first, last, words, _, counts):  # type: ignore[no-untyped-def]
    for block in range(first, last):
        found = np.uint64(0)
        for i in range(block * _WORDS, min((block + 1) * _WORDS, words.shape[0])):
            w = words[i]
            w -= (w >> np.uint64(1)) & _TWOS
            w = (w & _FOURS) + ((w >> np.uint64(2)) & _FOURS)
            w = (w + (w >> np.uint64(4))) & _EIGHTS
            found += (w * _EACH) >> np.uint64(56)
        counts[block] = found


# Eight at a time without branches: each is written where the next number goes, and stays there if it is one. The last numbers of a block are taken
# care of one by one, because behind them another thread writes.


@loop
def _pack(first, last, x, wide, starts, bits, packed):  # type: ignore[no-untyped-def]
    length, block_size, size = np.uint64(x.shape[0]), np.uint64(_BLOCK), np.uint64(x.itemsize)
    each, one, eight = np.uint64(64) // size, np.uint64(1), np.uint64(8)
    for block in range(np.uint64(first), np.uint64(last)):
        i, stop = block * block_size, min((block + one) * block_size, length)
        place, end = np.uint64(starts[block]), np.uint64(starts[block + one])
        if wide:
            given, to, marks = x.ctypes.data, packed.ctypes.data, bits.ctypes.data
            limit = to + end * size
            while i + each <= stop:
                there = to + place * size
                place += vector_packed(x, given + i * size, there, limit, marks + i // eight)
                i += each
        while i < stop:
            byte = np.uint64(0)
            if place + eight <= end and i + eight <= stop:
                for k in range(eight):
                    value = x[i + k]
                    packed[place] = value
                    some = np.uint64(value != 0)
                    place += some
                    byte |= some << k
            else:
                for k in range(min(eight, stop - i)):
                    if x[i + k] != 0:
                        packed[place] = x[i + k]
                        place += one
                        byte |= one << k
            bits[i // eight] = byte
            i += eight


@loop
def _unpack(first, last, bits, wide, starts, packed, made):  # type: ignore[no-untyped-def]
    length, block_size, size = np.uint64(made.shape[0]), np.uint64(_BLOCK), np.uint64(made.itemsize)
    each, one, eight = np.uint64(64) // size, np.uint64(1), np.uint64(8)
    end = np.uint64(packed.shape[0])
    for block in range(np.uint64(first), np.uint64(last)):
        i, stop = block * block_size, min((block + one) * block_size, length)
        place = np.uint64(starts[block])
        if wide:
            there, marks, to = packed.ctypes.data, bits.ctypes.data, made.ctypes.data
            while i + each <= stop:
                given = there + place * size
                place += vector_unpacked(made, given, marks + i // eight, to + i * size)
                i += each
        while i < stop:
            byte = np.uint64(bits[i // eight])
            if place + eight <= end and i + eight <= stop:
                for k in range(eight):
                    some = byte >> k & one
                    made[i + k] = np.uint64(packed[place]) * some
                    place += some
            else:
                for k in range(min(eight, stop - i)):
                    some = byte >> k & one
                    made[i + k] = np.uint64(packed[place]) if some else np.uint64(0)
                    place += some
            i += eight
