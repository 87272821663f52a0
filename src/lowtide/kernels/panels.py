"""How does a compiled loop multiply matrices? By panels of 16 columns of the second, a few rows of the first at a time.

A recurrent layer multiplies a few dozen rows by the same weights in every step. Calling a BLAS from inside a loop that numba compiled would do
it, but a BLAS brings the weights into its own order on every call; MKL's packed products, which do not, take 6 MB and more per matrix,
however small it is. So this is a GEMM, reduced to what is needed: the second matrix copied into panels once, all sums of a few rows by a panel
in registers. It is written down as LLVM's vectors of 16 floats, which become whatever vectors the processor has.

multiply         rows of the first matrix as they lie; more than `_BLOCK` of them in blocks that stay in the second nearest cache
multiply_across  the first matrix transposed: its columns are copied together first, 16 at a time

On a Zen 3 (AVX2) it is up to twice as fast as MKL's for 8 to 32 rows, and as fast for a thousand. On a Zen 4 (AVX-512), one core, a
thousand rows run at 103 to 112 of 117 possible GFLOP/s, where MKL's run at 86 to 96.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowtide.kernels.loops import COMPILED, inline

__all__ = ["WIDE", "WIDTH", "copy_columns", "copy_rows", "multiply", "multiply_across"]

WIDTH = 16
"""Columns of a panel: with 6 rows as many sums as 12 of AVX2's 16 registers hold."""


def _is_wide() -> bool:
    """Whether one of the processor's 32 registers holds a row of a panel."""
    if not COMPILED:
        return False
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("avx512f", False))


WIDE = _is_wide()
_ROWS = 8 if WIDE else 6
"""At a time. Rows that lie a power of two apart share a place in the nearest cache, which has eight of each."""
_BLOCK = 192
_LENGTH = 1024
"""Of a sum at a time: so much of a panel stays in the second nearest cache while all rows go past it."""
_ACROSS = 512
"""The same where the rows of a block are copied together, too."""
_ZERO = np.float32(0)


@inline
def copy_rows(weights, first, last, panels):  # type: ignore[no-untyped-def]
    """Rows first to last of weights (n, k) as columns: panels (ceil(n / 16), k, 16). Missing columns are zero."""
    for panel in range(panels.shape[0]):
        there = panels[panel]
        row = first + panel * WIDTH
        for start in range(0, there.shape[0], WIDTH):
            end = min(start + WIDTH, there.shape[0])
            for j in range(WIDTH):
                for k in range(start, end):
                    there[k, j] = weights[row + j, k] if row + j < last else _ZERO


@inline
def copy_columns(weights, first, last, panels):  # type: ignore[no-untyped-def]
    """Columns first to last of weights (k, n): panels (ceil(n / 16), k, 16). Missing columns are zero."""
    whole = (last - first) // WIDTH
    length = panels.shape[1]
    for start in range(0, length, WIDTH):
        end = min(start + WIDTH, length)
        for panel in range(whole):
            for k in range(start, end):
                for j in range(WIDTH):
                    panels[panel, k, j] = weights[k, first + panel * WIDTH + j]
        for panel in range(whole, panels.shape[0]):
            for k in range(start, end):
                for j in range(WIDTH):
                    column = first + panel * WIDTH + j
                    panels[panel, k, j] = weights[k, column] if column < last else _ZERO


def _tile(rows: int) -> Any:
    """c[rows, 16] = a[rows, k] @ panel, plus c if `add`. Addresses are integers; rows and columns of a, and rows of c, are so many bytes apart."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, add: Any, a: Any, a_row: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            add, a, a_row, a_step, panel, count, c, c_step = arguments
            number, long = ir.FloatType(), ir.IntType(64)
            vector = ir.VectorType(number, WIDTH)
            kind = ir.FunctionType(vector, [vector] * 3)
            fused = cgutils.get_or_insert_function(
                builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32"
            )

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

            def times(value: Any, factor: int) -> Any:
                return builder.mul(value, ir.Constant(long, factor))

            sums = [cgutils.alloca_once(builder, vector) for _ in range(rows)]
            for row in range(rows):
                there = builder.load(at(c, times(c_step, row), vector), align=4)
                nothing = ir.Constant(vector, [0.0] * WIDTH)
                builder.store(builder.select(add, there, nothing), sums[row])
            with cgutils.for_range(builder, count) as loop:
                weights = builder.load(at(panel, times(loop.index, 4 * WIDTH), vector), align=4)
                column = builder.mul(loop.index, a_step)
                for row in range(rows):
                    place = builder.add(times(a_row, row), column)
                    one = builder.load(at(a, place, number))
                    pair = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))  # fmt: skip
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
                    spread = builder.shuffle_vector(pair, ir.Constant(vector, ir.Undefined), zeros)
                    total = builder.call(fused, [spread, weights, builder.load(sums[row])])
                    builder.store(total, sums[row])
            for row in range(rows):
                builder.store(builder.load(sums[row]), at(c, times(c_step, row), vector), align=4)
            return context.get_dummy_value()

        return types.void(types.boolean, *[types.int64] * 7), generate

    return tile


def _copier() -> Any:
    """16 floats from one address to another."""

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(_: Any, source: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.VectorType(ir.FloatType(), WIDTH).as_pointer()
            source, target = (builder.inttoptr(place, kind) for place in arguments)
            builder.store(builder.load(source, align=4), target, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy


if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    _1, _2, _3, _4, _5, _6, _7, _8 = (_tile(rows) for rows in range(1, 9))
    _16, _copy = _tile(WIDTH), _copier()


@inline
def _one(rows, add, a, a_row, panel, count, c, c_step):  # type: ignore[no-untyped-def]
    if rows == 8:
        _8(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 7:
        _7(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 6:
        _6(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 5:
        _5(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 4:
        _4(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 3:
        _3(add, a, a_row, 4, panel, count, c, c_step)
    elif rows == 2:
        _2(add, a, a_row, 4, panel, count, c, c_step)
    else:
        _1(add, a, a_row, 4, panel, count, c, c_step)


@inline
def _take(edge, rows, width, add, c, row, column):  # type: ignore[no-untyped-def]
    """The corner of a tile that c has room for."""
    for r in range(rows):
        for j in range(width):
            old = c[row + r, column + j] if add else _ZERO
            c[row + r, column + j] = old + edge[r, j]


@inline
def _put(rows, more, a, a_row, panel, count, c, row, column, width, edge):  # type: ignore[no-untyped-def]
    """One tile of c; of the last panel only the columns that there are."""
    if width == WIDTH:
        to = c.ctypes.data + (row * c.shape[1] + column) * 4
        _one(rows, more, a, a_row, panel, count, to, 4 * c.shape[1])
    else:
        _one(rows, False, a, a_row, panel, count, edge.ctypes.data, 4 * WIDTH)
        _take(edge, rows, width, more, c, row, column)


@inline
def multiply(a, panels, add, c, first, last):  # type: ignore[no-untyped-def]
    """Columns first to last of c = a @ panels, plus c if `add`."""
    for start in range(0, a.shape[0], _BLOCK):
        _multiply_block(a, start, min(start + _BLOCK, a.shape[0]), panels, add, c, first, last)


@inline
def _multiply_block(a, top, bottom, panels, add, c, first, last):  # type: ignore[no-untyped-def]
    rows, length = bottom - top, a.shape[1]
    step = 4 * length
    tiles = -(-rows // _ROWS)
    edge = np.empty((_ROWS, WIDTH), np.float32)
    for start in range(0, length, _LENGTH):
        count = min(_LENGTH, length - start)
        for panel in range(panels.shape[0]):
            column = first + panel * WIDTH
            there = panels.ctypes.data + (panel * length + start) * WIDTH * 4
            for tile in range(tiles):
                row, end = top + rows * tile // tiles, top + rows * (tile + 1) // tiles
                here = a.ctypes.data + row * step + start * 4
                _put(
                    end - row, add or start > 0, here, step, there, count, c, row, column,
                    min(WIDTH, last - column), edge,
                )  # fmt: skip


@inline
def multiply_across(a, top, bottom, panels, add, c):  # type: ignore[no-untyped-def]
    """Rows top to bottom of c = a.T @ panels, plus c if `add`."""
    length = a.shape[0]
    tiles = _BLOCK // WIDTH
    # One vector more than needed between two tiles: else their lines share places in the cache.
    step = (min(_ACROSS, length) + 1) * WIDTH
    copied = np.empty(tiles * step, np.float32)
    edge = np.empty((WIDTH, WIDTH), np.float32)
    for start in range(0, length, _ACROSS):
        count = min(_ACROSS, length - start)
        for row in range(top, bottom, _BLOCK):
            end = min(row + _BLOCK, bottom)
            _gather(a, start, count, row, end, copied, step)
            for panel in range(panels.shape[0]):
                there = panels.ctypes.data + (panel * length + start) * WIDTH * 4
                column = panel * WIDTH
                width = min(WIDTH, c.shape[1] - column)
                for tile in range(-(-(end - row) // WIDTH)):
                    here = copied.ctypes.data + tile * step * 4
                    place = row + tile * WIDTH
                    if width == WIDTH and place + WIDTH <= end:
                        to = c.ctypes.data + (place * c.shape[1] + column) * 4
                        _16(add or start > 0, here, 4, 4 * WIDTH, there, count, to, 4 * c.shape[1])
                    else:
                        _16(False, here, 4, 4 * WIDTH, there, count, edge.ctypes.data, 4 * WIDTH)
                        _take(edge, min(WIDTH, end - place), width, add or start > 0, c, place, column)  # fmt: skip


@inline
def _gather(a, start, count, first, last, copied, step):  # type: ignore[no-untyped-def]
    """Columns first to last of a, from row start on, 16 beside each other: copied (tiles, step)."""
    whole = (last - first) // WIDTH
    for k in range(count):
        source = a.ctypes.data + ((start + k) * a.shape[1] + first) * 4
        for tile in range(whole):
            target = copied.ctypes.data + (tile * step + k * WIDTH) * 4
            _copy(source + tile * WIDTH * 4, target)
        for j in range((last - first) % WIDTH):
            copied[whole * step + k * WIDTH + j] = a[start + k, first + whole * WIDTH + j]
