"""Max-pooling that keeps four bits per window, and is done in a few passes over memory that stays in the nearest cache.

ATen looks at one window after the other. Here a band of a plane is first copied apart, by the parity of its rows and columns for a stride of two, with a
border of -inf around it: then what windows side by side see at one place lies side by side, and sixteen of them are compared at once. Same maxima,
same places: the first of equal ones, the last NaN; and where there is nothing but -inf, the window's first place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.loops import flat, inline, loop, spread

__all__ = ["max_pool"]

_BAND = 2048
"""Windows that are looked at together, about."""


@torch.library.custom_op("lowtide::max_pool", mutates_args=())
def max_pool(
    given: Tensor,
    rows: int,
    columns: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """`rows` and `columns` of the result, and it; and where in their windows the maxima are, as `kernels.pooling.pack_indices` says it."""
    made, packed = _results(given, rows, columns)
    height, width = given.shape[-2:]
    (tall, wide), (down, along) = kernel, stride
    across = columns + (wide - 1) // along
    spread(
        _pool, made.numel() // max(rows * columns, 1), rows * columns * tall * wide,
        flat(given), height, width, rows, columns, tall, wide, down, along, padding[0], padding[1],
        max(1, _BAND // across), flat(made), flat(packed),
    )  # fmt: skip
    return made, packed


@max_pool.register_fake
def _(
    given: Tensor,
    rows: int,
    columns: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> tuple[Tensor, Tensor]:
    return _results(given, rows, columns)


def _results(given: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    made = given.new_empty((*given.shape[:-2], rows, columns))
    lines = made.numel() // max(columns, 1)
    return made, given.new_empty((lines, (columns + 1) // 2), dtype=torch.uint8)


@loop
def _pool(first, last, given, height, width, rows, columns, tall, wide, down, along, above, left, most, made, packed):  # type: ignore[no-untyped-def]  # fmt: skip
    """Planes. A part is what windows see at places of one parity: `deep` rows of `across` numbers each."""
    across = columns + (wide - 1) // along
    deep = most + (tall - 1) // down
    size = deep * across
    parts = np.empty(down * along * size, given.dtype)
    count = tall * wide
    offsets = np.empty(count, np.int64)
    for k in range(count):
        i, j = k // wide, k % wide
        part = (i % down) * along + j % along
        offsets[k] = part * size + (i // down) * across + j // along
    best, place = np.empty(most * across, given.dtype), np.empty(most * across, np.int32)
    for plane in range(first, last):
        for top in range(0, rows, most):
            bottom = min(top + most, rows)
            _apart(given, plane * height, height, width, top * down - above, left, bottom - top + (tall - 1) // down, down, along, across, size, parts)  # fmt: skip
            _look((bottom - top - 1) * across + columns, parts, offsets, best, place)
            _first(best, place, bottom - top, columns, across, top * down - above, down, along, left, wide)  # fmt: skip
            _note(best, place, bottom - top, across, columns, (plane * rows + top) * columns, made)
            _pack(place, bottom - top, columns, (plane * rows + top) * ((columns + 1) // 2), packed)


@inline
def _note(best, place, rows, across, columns, to, made):  # type: ignore[no-untyped-def]
    """What was found, and the places of a row right behind those of the row before."""
    for row in range(rows):
        here, there = np.uint64(row * across), np.uint64(to + row * columns)
        dense = np.uint64(row * columns)
        for column in range(np.uint64(columns)):
            made[there + column] = best[here + column]
        for column in range(np.uint64(columns)):
            place[dense + column] = place[here + column]


@inline
def _pack(place, rows, columns, to, packed):  # type: ignore[no-untyped-def]
    """Two places in a byte; where a row's number is odd, the last has one of its own."""
    one, two, first = np.uint64(1), np.uint64(2), np.uint64(to)
    if columns % 2 == 0:
        rows, columns = 1, rows * columns
    for row in range(rows):
        here, there = np.uint64(row * columns), first + np.uint64(row * ((columns + 1) // 2))
        for pair in range(np.uint64(columns // 2)):
            packed[there + pair] = place[here + two * pair] | place[here + two * pair + one] << 4
        if columns % 2:
            packed[there + np.uint64(columns // 2)] = place[here + np.uint64(columns - 1)]


@inline
def _apart(given, above, height, width, top, left, deep, down, along, across, size, parts):  # type: ignore[no-untyped-def]
    """From row `top` of a plane on, `deep` rows for each part. `above`: rows of all planes before."""
    outside = -np.inf
    for part_row in range(down):
        for part_column in range(along):
            begin = (part_row * along + part_column) * size
            # Columns that there are: 0 <= column * along + part_column - left < width
            start = min(across, max(0, -(-(left - part_column) // along)))
            end = max(start, min(across, (width - 1 + left - part_column) // along + 1))
            for row in range(deep):
                there, source = begin + row * across, top + row * down + part_row
                if source < 0 or source >= height:
                    parts[there : there + across] = outside
                    continue
                base = (above + source) * width + part_column - left
                for column in range(np.uint64(there), np.uint64(there + start)):
                    parts[column] = outside
                for column in range(np.uint64(there + end), np.uint64(there + across)):
                    parts[column] = outside
                line = given[base + along * start : base + along * (end - 1) + 1]
                taken = parts[there + start : there + end]
                count = np.uint64(end - start)
                if along == 1:
                    for column in range(count):
                        taken[column] = line[column]
                elif along == 2:
                    for column in range(count):
                        taken[column] = line[np.uint64(2) * column]
                else:
                    for column in range(count):
                        taken[column] = line[np.uint64(along) * column]


@inline
def _first(best, place, rows, columns, across, top, down, along, left, wide):  # type: ignore[no-untyped-def]
    """Windows that see nothing but -inf: their first place in the plane, which is not that of the window where it begins outside."""
    beside = min(columns, -(-left // along))
    for row in range(rows):
        above = max(0, -(top + row * down))
        for column in range(columns if above else beside):
            if best[row * across + column] == -np.inf:
                place[row * across + column] = above * wide + max(0, left - column * along)


@inline
def _look(count, parts, offsets, best, place):  # type: ignore[no-untyped-def]
    """At all places of all windows."""
    if len(offsets) == 9:
        _nine(count, parts, offsets, best, place)
    elif len(offsets) == 4:
        _four(count, parts, offsets, best, place)
    else:
        best[:count], place[:count] = -np.inf, 0
        for k in range(len(offsets)):
            seen = _seen(parts, offsets, k, count)
            for q in range(np.uint64(count)):
                best[q], place[q] = _larger(seen[q], k, best[q], place[q])


@inline
def _seen(parts, offsets, k, count):  # type: ignore[no-untyped-def]
    return parts[offsets[k] : offsets[k] + count]


@inline
def _larger(one, where, best, place):  # type: ignore[no-untyped-def]
    takes = (one > best) | (one != one)
    return (one if takes else best), (np.int32(where) if takes else place)


@inline
def _four(count, parts, offsets, best, place):  # type: ignore[no-untyped-def]
    a, b = _seen(parts, offsets, 0, count), _seen(parts, offsets, 1, count)
    c, d = _seen(parts, offsets, 2, count), _seen(parts, offsets, 3, count)
    least = parts.dtype.type(-np.inf)
    for q in range(np.uint64(count)):
        most, where = _larger(a[q], 0, least, np.int32(0))
        most, where = _larger(b[q], 1, most, where)
        most, where = _larger(c[q], 2, most, where)
        best[q], place[q] = _larger(d[q], 3, most, where)


@inline
def _nine(count, parts, offsets, best, place):  # type: ignore[no-untyped-def]
    a, b, c = (
        _seen(parts, offsets, 0, count),
        _seen(parts, offsets, 1, count),
        _seen(parts, offsets, 2, count),
    )
    d, e, f = (
        _seen(parts, offsets, 3, count),
        _seen(parts, offsets, 4, count),
        _seen(parts, offsets, 5, count),
    )
    g, h, i = (
        _seen(parts, offsets, 6, count),
        _seen(parts, offsets, 7, count),
        _seen(parts, offsets, 8, count),
    )
    least = parts.dtype.type(-np.inf)
    for q in range(np.uint64(count)):
        most, where = _larger(a[q], 0, least, np.int32(0))
        most, where = _larger(b[q], 1, most, where)
        most, where = _larger(c[q], 2, most, where)
        most, where = _larger(d[q], 3, most, where)
        most, where = _larger(e[q], 4, most, where)
        most, where = _larger(f[q], 5, most, where)
        most, where = _larger(g[q], 6, most, where)
        most, where = _larger(h[q], 7, most, where)
        best[q], place[q] = _larger(i[q], 8, most, where)
