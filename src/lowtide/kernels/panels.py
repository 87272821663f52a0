"""How does a compiled loop multiply matrices? By panels of 16 columns of the second, a few rows of the first at a time.

A recurrent layer multiplies a few dozen rows by the same weights in every step. Calling a BLAS from inside a loop that numba compiled would do
it, but a BLAS brings the weights into its own order on every call; MKL's packed products, which do not, take 6 MB and more per matrix,
however small it is. So this is a GEMM, reduced to what is needed: the second matrix copied into panels once, all sums of a few rows by a panel
or two in registers (`kernels/tiles.py`).

multiply         the first matrix as it is
multiply_across  the first matrix transposed

Registers of AVX-512 hold the sums of 14 rows by two panels, which asks for one number from the cache per multiplication and a half; one panel
would ask for as many as a core can bring. The rows are copied together first, so that they stay in the nearest cache while all panels go
past them. Narrower processors, and what is too little for that, take up to 8 rows as they lie, by one panel.

One core of a Cascade Lake (AVX-512): 110 to 124 GFLOP/s from 64 rows on, MKL 96 for 64 rows and 131 for a thousand. Zen 3 (AVX2): up to twice
as fast as MKL for 8 to 32 rows, as fast for a thousand.
"""

from __future__ import annotations

import re

import numpy as np

from lowtide.kernels.loops import COMPILED, inline
from lowtide.kernels.tiles import WIDTH, copier, tile_by_panels, turner

__all__ = [
    "BEATS_BLAS",
    "WIDE",
    "WIDTH",
    "copy_columns",
    "copy_rows",
    "multiply",
    "multiply_across",
    "scratch",
]


def _is_wide() -> bool:
    """Whether one of the processor's 32 registers holds a row of a panel."""
    if not COMPILED:
        return False
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("avx512f", False))


def _beats_blas() -> bool:
    """Whether they are faster than MKL for a thousand rows, too: it does its best on Intel's processors."""
    if not WIDE:
        return False
    from llvmlite import binding

    return not _INTEL.search(binding.get_host_cpu_name())


WIDE = _is_wide()
_INTEL = re.compile("lake|rapids|skx|skylake|knl|knm|forest")
"""LLVM's names of those with AVX-512."""
BEATS_BLAS = _beats_blas()
_ROWS = 8 if WIDE else 6
"""At a time, as they lie."""
_LENGTH = 1024
"""Of a sum at a time: so much of a panel stays in the second nearest cache while all rows go past it."""
_FEW, _MOST = 8, 14
"""Rows in a copied tile, an even number; what there are too few of is zero."""
_BLOCK = 14 * _MOST
"""Rows that are copied together: they stay in the second nearest cache."""
_COPIED = 512
"""Of a sum at a time, then: a tile stays in the nearest cache."""
_WORTH = 8
"""Panels from which on the copies are made up for."""
_STEP = (_COPIED + 1) * WIDTH
"""Between copied tiles. One vector more than needed: else their lines share places in the cache."""
_ZERO = np.float32(0)

if COMPILED:
    _1, _2, _3, _4, _5, _6, _7, _8 = (tile_by_panels(rows) for rows in range(1, 9))
    _by_8, _by_10, _by_12, _by_14 = (tile_by_panels(rows, 2) for rows in range(_FEW, _MOST + 1, 2))
    _alone_8, _alone_10, _alone_12, _alone_14 = (
        tile_by_panels(rows) for rows in range(_FEW, _MOST + 1, 2)
    )
    _copy, _turn = copier(), turner()


@inline
def copy_rows(weights, first, last, panels, own, end):  # type: ignore[no-untyped-def]
    """Rows first to last of each group of weights (groups, n, k), one group after the other, as columns: panels own to end of (.., k, 16).
    Missing columns are zero."""
    groups, gap, length = weights.shape
    width, whole = last - first, length // WIDTH * WIDTH
    for panel in range(own, end):
        begin, target = panel * WIDTH, panels.ctypes.data + panel * length * WIDTH * 4
        inside = begin + WIDTH <= groups * width and width >= WIDTH
        if inside:
            group, number = begin // width, begin % width
            source = weights.ctypes.data + (group * gap + first + number) * length * 4
            jump = (gap - width) * length * 4  # over what is not wanted, to the next group
            for k in range(0, whole, WIDTH):
                _turn(source + k * 4, length * 4, WIDTH - 1, width - number, jump, target + k * WIDTH * 4)  # fmt: skip
        for j in range(WIDTH):
            number = begin + j
            there = number < groups * width
            group, row = (number // width, first + number % width) if there else (0, 0)
            for k in range(whole if inside else 0, length):
                panels[panel, k, j] = weights[group, row, k] if there else _ZERO


@inline
def copy_columns(weights, first, last, panels):  # type: ignore[no-untyped-def]
    """Columns first to last of weights (k, n): panels (ceil(n / 16), k, 16). Missing columns are zero."""
    whole = (last - first) // WIDTH
    for k in range(panels.shape[1]):
        source = weights.ctypes.data + (k * weights.shape[1] + first) * 4
        for panel in range(whole):
            _copy(source + panel * WIDTH * 4, panels.ctypes.data + panel * panels.strides[0] + k * WIDTH * 4)  # fmt: skip
        for panel in range(whole, panels.shape[0]):
            for j in range(WIDTH):
                column = first + panel * WIDTH + j
                panels[panel, k, j] = weights[k, column] if column < last else _ZERO


@inline
def _one(rows, add, a, a_row, panel, count, c, c_step):  # type: ignore[no-untyped-def]
    if rows == 8:
        _8(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 7:
        _7(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 6:
        _6(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 5:
        _5(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 4:
        _4(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 3:
        _3(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    elif rows == 2:
        _2(add, a, a_row, 4, panel, panel, count, c, c, c_step)
    else:
        _1(add, a, a_row, 4, panel, panel, count, c, c, c_step)


@inline
def _take(edge, start, rows, width, add, c, row, column):  # type: ignore[no-untyped-def]
    """The part of a tile, from column `start` on, that c has room for."""
    for r in range(rows):
        for j in range(width):
            old = c[row + r, column + j] if add else _ZERO
            c[row + r, column + j] = old + edge[r, start + j]


@inline
def _two(rows, add, a, panel, other, count, c, c_other, c_step):  # type: ignore[no-untyped-def]
    """A copied tile by two panels."""
    if rows == 14:
        _by_14(add, a, 4, 4 * WIDTH, panel, other, count, c, c_other, c_step)
    elif rows == 12:
        _by_12(add, a, 4, 4 * WIDTH, panel, other, count, c, c_other, c_step)
    elif rows == 10:
        _by_10(add, a, 4, 4 * WIDTH, panel, other, count, c, c_other, c_step)
    else:
        _by_8(add, a, 4, 4 * WIDTH, panel, other, count, c, c_other, c_step)


@inline
def _alone(rows, add, a, panel, count, c, c_step):  # type: ignore[no-untyped-def]
    """A copied tile by the last panel, where there is no other beside it."""
    if rows == 14:
        _alone_14(add, a, 4, 4 * WIDTH, panel, panel, count, c, c, c_step)
    elif rows == 12:
        _alone_12(add, a, 4, 4 * WIDTH, panel, panel, count, c, c, c_step)
    elif rows == 10:
        _alone_10(add, a, 4, 4 * WIDTH, panel, panel, count, c, c, c_step)
    else:
        _alone_8(add, a, 4, 4 * WIDTH, panel, panel, count, c, c, c_step)


@inline
def _shares(rows, most):  # type: ignore[no-untyped-def]
    """How many stretches of at most so many."""
    return -(-rows // most)


@inline
def _place(rows, most, number, multiple=2):  # type: ignore[no-untyped-def]
    """Where a stretch begins: even numbers of rows, as equal as can be."""
    return min(rows, multiple * (-(-rows // multiple) * number // _shares(rows, most)))


@inline
def _term(length, number):  # type: ignore[no-untyped-def]
    """Likewise for the terms of a sum."""
    return _place(length, _COPIED, number, WIDTH)


@inline
def scratch():  # type: ignore[no-untyped-def]
    """What the products need, for a thread."""
    return np.zeros(_BLOCK // _MOST * _STEP, np.float32)


@inline
def multiply(a, panels, add, c, first, last, copied):  # type: ignore[no-untyped-def]
    """Columns first to last of c = a @ panels, plus c if `add`. `copied` is `scratch()`."""
    rows, length = a.shape
    if not (WIDE and rows >= _FEW and panels.shape[0] >= _WORTH):
        _multiply_plain(a, panels, add, c, first, last)
        return
    for part in range(_shares(length, _COPIED)):
        start, end = _term(length, part), _term(length, part + 1)
        for block in range(_shares(rows, _BLOCK)):
            top, bottom = _place(rows, _BLOCK, block), _place(rows, _BLOCK, block + 1)
            _gather_rows(a, start, end - start, top, bottom, copied)
            _multiply_copied(copied, start, end - start, top, bottom, panels, add or start > 0, c, first, last)  # fmt: skip


@inline
def multiply_across(a, first, last, panels, others, add, c, d, copied):  # type: ignore[no-untyped-def]
    """Rows first to last of c = a.T @ panels and of d = a.T @ others, plus c and d if `add`. What is not wanted is empty."""
    rows, length = last - first, a.shape[0]
    for part in range(_shares(length, _COPIED)):
        start = _term(length, part)
        count, more = _term(length, part + 1) - start, add or start > 0
        for block in range(_shares(rows, _BLOCK)):
            top, bottom = (
                first + _place(rows, _BLOCK, block),
                first + _place(rows, _BLOCK, block + 1),
            )
            _gather_columns(a, start, count, top, bottom, copied)
            if c.size:
                _multiply_copied(copied, start, count, top, bottom, panels, more, c, 0, c.shape[1])  # fmt: skip
            if d.size:
                _multiply_copied(copied, start, count, top, bottom, others, more, d, 0, d.shape[1])  # fmt: skip


@inline
def _multiply_plain(a, panels, add, c, first, last):  # type: ignore[no-untyped-def]
    rows, length = a.shape
    step, tiles = 4 * length, -(-rows // _ROWS)
    edge = np.empty((_ROWS, WIDTH), np.float32)
    for start in range(0, length, _LENGTH):
        count, more = min(_LENGTH, length - start), add or start > 0
        for panel in range(panels.shape[0]):
            column = first + panel * WIDTH
            there = panels.ctypes.data + (panel * length + start) * WIDTH * 4
            for tile in range(tiles):
                row, end = rows * tile // tiles, rows * (tile + 1) // tiles
                here = a.ctypes.data + row * step + start * 4
                if column + WIDTH <= last:
                    to = c.ctypes.data + (row * c.shape[1] + column) * 4
                    _one(end - row, more, here, step, there, count, to, 4 * c.shape[1])
                else:
                    _one(end - row, False, here, step, there, count, edge.ctypes.data, 4 * WIDTH)
                    _take(edge, 0, end - row, last - column, more, c, row, column)


@inline
def _multiply_copied(copied, start, count, top, bottom, panels, add, c, first, last):  # type: ignore[no-untyped-def]
    """One block: `count` terms of each sum, from `start` on. Panels are taken two by two."""
    edge = np.empty((_MOST, 2 * WIDTH), np.float32)
    tiles, step = _shares(bottom - top, _MOST), c.shape[1] * 4
    tops = np.empty(tiles + 1, np.int64)  # looked up, not divided for again and again
    for tile in range(tiles + 1):
        tops[tile] = top + _place(bottom - top, _MOST, tile)
    panel_step, row_step, _ = panels.strides
    source, begin = copied.ctypes.data, panels.ctypes.data + start * row_step
    for panel in range(0, panels.shape[0], 2):
        here, there = begin + panel * panel_step, begin + (panel + 1) * panel_step
        column = first + panel * WIDTH
        width = min(2 * WIDTH, last - column)
        for tile in range(tiles):
            row, rows = tops[tile], tops[tile + 1] - tops[tile]
            size, tiled = max(_FEW, (rows + 1) // 2 * 2), source + tile * _STEP * 4
            whole = rows == size and (width == 2 * WIDTH or width == WIDTH)
            to, beneath = edge.ctypes.data, 2 * WIDTH * 4
            if whole:
                to, beneath = c.ctypes.data + row * step + column * 4, step
            if width > WIDTH:
                _two(size, add and whole, tiled, here, there, count, to, to + WIDTH * 4, beneath)
            else:
                _alone(size, add and whole, tiled, here, count, to, beneath)
            if not whole:
                _take(edge, 0, rows, width, add, c, row, column)


@inline
def _gather_rows(a, start, count, top, bottom, copied):  # type: ignore[no-untyped-def]
    """Tiles of rows of a, from column start on."""
    length = a.shape[1]
    rows, whole = bottom - top, count // WIDTH * WIDTH
    for tile in range(_shares(rows, _MOST)):
        row = top + _place(rows, _MOST, tile)
        source = a.ctypes.data + (row * length + start) * 4
        target = copied.ctypes.data + tile * _STEP * 4
        last = min(WIDTH, a.shape[0] - row) - 1
        for k in range(0, whole, WIDTH):
            _turn(source + k * 4, length * 4, last, WIDTH, 0, target + k * WIDTH * 4)
        for k in range(whole, count):
            for j in range(last + 1):
                copied[tile * _STEP + k * WIDTH + j] = a[row + j, start + k]


@inline
def _gather_columns(a, start, count, first, last, copied):  # type: ignore[no-untyped-def]
    """Tiles of columns of a, from row start on."""
    columns = last - first
    tiles = _shares(columns, _MOST)
    for k in range(count):
        source = a.ctypes.data + (start + k) * a.shape[1] * 4
        for tile in range(tiles):
            column = first + _place(columns, _MOST, tile)
            if column + WIDTH <= a.shape[1]:
                _copy(source + column * 4, copied.ctypes.data + (tile * _STEP + k * WIDTH) * 4)
            else:
                for j in range(a.shape[1] - column):
                    copied[tile * _STEP + k * WIDTH + j] = a[start + k, column + j]
