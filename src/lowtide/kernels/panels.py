"""How does a compiled loop multiply matrices? By panels of 16 columns of the second, up to 6 rows of the first at a time.

A recurrent layer multiplies a few dozen rows by the same weights in every step. Calling a BLAS from inside a loop that numba compiled would do
it, but a BLAS brings the weights into its own order on every call; MKL's packed products, which do not, take 6 MB and more per matrix,
however small it is. So this is a GEMM, reduced to what is needed: the second matrix copied into panels once, all sums of 6 rows by a panel in
registers. It is written down as LLVM's vectors of 16 floats, which become whatever vectors the processor has. On a Zen 3 it is up to twice as
fast as MKL's for 8 to 32 rows; for a thousand it is as fast, so large products are left to torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowtide.kernels.loops import COMPILED, inline

__all__ = ["WIDTH", "copy_columns", "copy_rows", "multiply"]

WIDTH = 16
"""Columns of a panel: with `_ROWS` rows as many sums as 12 of AVX2's 16 registers hold."""
_ROWS = 6
_LENGTH = 1024
"""Of a sum at a time: so much of a panel stays in the second nearest cache while all rows go past it."""
_ZERO = np.float32(0)


@inline
def copy_rows(weights, first, last, panels):  # type: ignore[no-untyped-def]
    """Rows first to last of weights (n, k) as columns: panels (ceil(n / 16), k, 16). Missing columns are zero."""
    for panel in range(panels.shape[0]):
        there = panels[panel]
        start = first + panel * WIDTH
        for j in range(WIDTH):
            if start + j < last:
                for k in range(there.shape[0]):
                    there[k, j] = weights[start + j, k]
            else:
                there[:, j] = 0


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
    """c[rows, 16] = a[rows, k] @ panel, plus c if `add`. Addresses are integers; rows of a and c are so many bytes apart."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, add: Any, a: Any, a_step: Any, panel: Any, count: Any, c: Any, c_step: Any
    ) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            add, a, a_step, panel, count, c, c_step = arguments
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
                for row in range(rows):
                    place = builder.add(times(a_step, row), times(loop.index, 4))
                    one = builder.load(at(a, place, number))
                    pair = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))  # fmt: skip
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
                    spread = builder.shuffle_vector(pair, ir.Constant(vector, ir.Undefined), zeros)
                    total = builder.call(fused, [spread, weights, builder.load(sums[row])])
                    builder.store(total, sums[row])
            for row in range(rows):
                builder.store(builder.load(sums[row]), at(c, times(c_step, row), vector), align=4)
            return context.get_dummy_value()

        return types.void(types.boolean, *[types.int64] * 6), generate

    return tile


if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    _1, _2, _3, _4, _5, _6 = (_tile(rows) for rows in range(1, _ROWS + 1))


@inline
def _one(rows, add, a, a_step, panel, count, c, c_step):  # type: ignore[no-untyped-def]
    if rows == 6:
        _6(add, a, a_step, panel, count, c, c_step)
    elif rows == 5:
        _5(add, a, a_step, panel, count, c, c_step)
    elif rows == 4:
        _4(add, a, a_step, panel, count, c, c_step)
    elif rows == 3:
        _3(add, a, a_step, panel, count, c, c_step)
    elif rows == 2:
        _2(add, a, a_step, panel, count, c, c_step)
    else:
        _1(add, a, a_step, panel, count, c, c_step)


@inline
def _put(rows, more, a, a_step, panel, count, c, row, column, width, edge):  # type: ignore[no-untyped-def]
    """One tile of c; of the last panel only the columns that there are."""
    if width == WIDTH:
        to = c.ctypes.data + (row * c.shape[1] + column) * 4
        _one(rows, more, a, a_step, panel, count, to, 4 * c.shape[1])
        return
    _one(rows, False, a, a_step, panel, count, edge.ctypes.data, 4 * WIDTH)
    for r in range(rows):
        for j in range(width):
            old = c[row + r, column + j] if more else _ZERO
            c[row + r, column + j] = old + edge[r, j]


@inline
def multiply(a, panels, add, c, first, last):  # type: ignore[no-untyped-def]
    """Columns first to last of c = a @ panels, plus c if `add`. Few enough rows, one after the other, to stay in the cache."""
    rows, length = a.shape
    step = 4 * a.shape[1]
    tiles = -(-rows // _ROWS)
    edge = np.empty((_ROWS, WIDTH), np.float32)
    for start in range(0, length, _LENGTH):
        count = min(_LENGTH, length - start)
        for panel in range(panels.shape[0]):
            column = first + panel * WIDTH
            there = panels.ctypes.data + (panel * length + start) * WIDTH * 4
            for tile in range(tiles):
                row, end = rows * tile // tiles, rows * (tile + 1) // tiles
                here = a.ctypes.data + row * step + start * 4
                _put(
                    end - row, add or start > 0, here, step, there, count, c, row, column,
                    min(WIDTH, last - column), edge,
                )  # fmt: skip
