"""How are eight rows of numbers added up side by side, each from its first number to its last?

A sum whose order is given is as slow as one addition after another. Eight of them at a time fill a vector: so blocks of eight by eight numbers are
transposed in registers, and columns are added to eight sums in double precision. Written down as LLVM's vectors, because compilers do not find this.
"""

from __future__ import annotations

from typing import Any

from lowtide.kernels.loops import COMPILED

__all__ = ["ROWS", "add_columns"]

ROWS = 8
"""At a time."""

if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic


def _add_columns(_: Any, source: Any, step: Any, count: Any, means: Any, totals: Any, squared: Any) -> Any:  # fmt: skip
    """To eight doubles at `totals` the floats of eight rows, `step` bytes apart from `source` on; or, if `squared`, the squares of what is left of them
    without their rows' `means`. `count`, the length of the rows, is a multiple of eight."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        source, step, count, means, totals, squared = arguments
        long = ir.IntType(64)
        floats, doubles = (ir.VectorType(kind, ROWS) for kind in (ir.FloatType(), ir.DoubleType()))

        def at(address: Any, kind: Any) -> Any:
            return builder.inttoptr(address, kind.as_pointer())

        total = cgutils.alloca_once(builder, doubles)
        builder.store(builder.load(at(totals, doubles), align=8), total)
        mean = builder.load(at(means, floats), align=4)

        def go(squares: bool) -> None:
            blocks = builder.udiv(count, ir.Constant(long, ROWS))
            with cgutils.for_range(builder, blocks) as loop:
                place = builder.add(source, builder.mul(loop.index, ir.Constant(long, 4 * ROWS)))
                rows = []
                for _ in range(ROWS):
                    rows.append(builder.load(at(place, floats), align=4))
                    place = builder.add(place, step)
                sums = builder.load(total)
                for column in _transposed(builder, rows):
                    if squares:
                        away = builder.fsub(column, mean)
                        column = builder.fmul(away, away)
                    sums = builder.fadd(sums, builder.fpext(column, doubles))
                builder.store(sums, total)

        with builder.if_else(squared) as (then, otherwise):
            with then:
                go(True)
            with otherwise:
                go(False)
        builder.store(builder.load(total), at(totals, doubles), align=8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5, types.boolean), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Blocks of one, two and four change places across the diagonal."""
    for size in (1, 2, 4):
        upper = [j if not j & size else ROWS + j - size for j in range(ROWS)]
        lower = [j + size if not j & size else ROWS + j for j in range(ROWS)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), ROWS), m) for m in (upper, lower)]
        for r in (r for r in range(ROWS) if not r & size):
            pair = rows[r], rows[r + size]
            rows[r], rows[r + size] = (builder.shuffle_vector(*pair, m) for m in masks)
    return rows


add_columns: Any = intrinsic(_add_columns) if COMPILED else _add_columns
