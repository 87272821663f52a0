"""What are the innermost loops of a product made of? Of a few rows by 16 or 32 columns, whose sums stay in registers.

Written down as LLVM's vectors of 16 floats, which become whatever vectors the processor has. All addresses are integers.
"""

from __future__ import annotations

from typing import Any

from lowtide.kernels.loops import COMPILED

__all__ = ["WIDTH", "copier", "tile_by_panels", "turner"]

WIDTH = 16
"""Columns of a panel."""
_AHEAD = 1024
"""Bytes: sixteen rows of a panel."""

if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic


def tile_by_panels(rows: int, panels: int = 1) -> Any:
    """c[rows, 16] = a[rows, k] @ panel, plus c if `add`; for one panel or for two, with as many places in c. Rows and columns of a, and rows of
    c, are so many bytes apart."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, add: Any, a: Any, a_row: Any, a_step: Any, panel: Any, other: Any, count: Any, c: Any, c_other: Any, c_step: Any
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            add, a, a_row, a_step, panel, other, count, c, c_other, c_step = arguments
            number, byte, long = ir.FloatType(), ir.IntType(8), ir.IntType(64)
            vector = ir.VectorType(number, WIDTH)
            kind = ir.FunctionType(vector, [vector] * 3)
            fused = cgutils.get_or_insert_function(
                builder.module, kind, f"llvm.fmuladd.v{WIDTH}f32"
            )

            def at(base: Any, offset: Any, kind: Any) -> Any:
                return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

            def times(value: Any, factor: int) -> Any:
                return builder.mul(value, ir.Constant(long, factor))

            ready = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [byte.as_pointer(), *[ir.IntType(32)] * 3]),
                "llvm.prefetch.p0",
            )
            starts, targets = (panel, other)[:panels], (c, c_other)[:panels]
            places = [(times(c_step, row), target) for row in range(rows) for target in targets]
            sums = [cgutils.alloca_once(builder, vector) for _ in places]
            for (offset, target), total in zip(places, sums, strict=True):
                # c is on its way while the sums are made: to write, into the nearest cache, data.
                hints = [ir.Constant(ir.IntType(32), n) for n in (1, 3, 1)]
                builder.call(ready, [at(target, offset, byte), *hints])
                builder.store(ir.Constant(vector, [0.0] * WIDTH), total)
            with cgutils.for_range(builder, count) as loop:
                place = times(loop.index, 4 * WIDTH)
                weights = [builder.load(at(start, place, vector), align=4) for start in starts]
                for start in starts:
                    # What comes next of a panel is on its way, too: to read, into the nearest cache, data.
                    hints = [ir.Constant(ir.IntType(32), n) for n in (0, 3, 1)]
                    next_ = builder.add(place, ir.Constant(long, _AHEAD))
                    builder.call(ready, [at(start, next_, byte), *hints])
                column = builder.mul(loop.index, a_step)
                for row in range(rows):
                    one = builder.load(at(a, builder.add(times(a_row, row), column), number))
                    pair = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))  # fmt: skip
                    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
                    spread = builder.shuffle_vector(pair, ir.Constant(vector, ir.Undefined), zeros)
                    for weight, total in zip(weights, sums[row * panels :]):
                        value = builder.call(fused, [spread, weight, builder.load(total)])
                        builder.store(value, total)
            with builder.if_then(add):
                for (offset, target), total in zip(places, sums, strict=True):
                    old = builder.load(at(target, offset, vector), align=4)
                    builder.store(builder.fadd(old, builder.load(total)), total)
            for (offset, target), total in zip(places, sums, strict=True):
                builder.store(builder.load(total), at(target, offset, vector), align=4)
            return context.get_dummy_value()

        return types.void(types.boolean, *[types.int64] * 9), generate

    return tile


def copier() -> Any:
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


def turner() -> Any:
    """16 by 16 floats, transposed: rows so many bytes apart at one address become rows without gaps at another. Past row `last`, it comes again;
    from row `cut` on, rows are `jump` bytes further."""

    @intrinsic  # type: ignore[untyped-decorator]
    def turn(_: Any, source: Any, step: Any, last: Any, cut: Any, jump: Any, target: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            source, step, last, cut, jump, target = arguments
            long, kind = ir.IntType(64), ir.VectorType(ir.FloatType(), WIDTH).as_pointer()

            def at(base: Any, offset: Any) -> Any:
                return builder.inttoptr(builder.add(base, offset), kind)

            def line(number: int) -> Any:
                here = ir.Constant(long, number)
                there = builder.select(builder.icmp_signed("<", here, last), here, last)
                further = builder.select(
                    builder.icmp_signed("<", here, cut), ir.Constant(long, 0), jump
                )
                place = builder.add(builder.mul(step, there), further)
                return builder.load(at(source, place), align=4)

            rows = [line(number) for number in range(WIDTH)]
            for size in (1, 2, 4, 8):  # blocks of so many change places across the diagonal
                upper = [j if not j & size else WIDTH + j - size for j in range(WIDTH)]
                lower = [j + size if not j & size else WIDTH + j for j in range(WIDTH)]
                masks = [ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), m) for m in (upper, lower)]  # fmt: skip
                for r in (r for r in range(WIDTH) if not r & size):
                    pair = rows[r], rows[r + size]
                    rows[r], rows[r + size] = (builder.shuffle_vector(*pair, m) for m in masks)
            for r, row in enumerate(rows):
                builder.store(row, at(target, ir.Constant(long, 4 * WIDTH * r)), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return turn
