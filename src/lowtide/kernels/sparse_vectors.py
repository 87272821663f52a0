"""How are the numbers of a vector that are not zero packed at once? By AVX-512's compress and expand, 64 bytes of elements each time.

Written down as LLVM's intrinsics. Packed is in a register and then stored whole where there is room, because AMD's processors compress into memory an
element at a time; so up to 63 bytes behind the numbers are written over. They belong to the numbers that come next, and at a block's end,
where these may be there already, only what counts is stored.

The first argument of each is an array of the elements' type; the others are addresses. The result is how many numbers there were.
"""

from __future__ import annotations

from typing import Any

from lowtide.kernels.loops import COMPILED

__all__ = ["VECTORS", "vector_counted", "vector_packed", "vector_unpacked"]

_WIDTH = 512
_LEAST_LLVM = 20
"""Since when it packs in a register for all processors alike."""

if COMPILED:
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    _features = llvm.get_host_cpu_features() if llvm.llvm_version_info[0] >= _LEAST_LLVM else {}
    _needed = {2: "avx512vbmi2", 4: "avx512f", 8: "avx512f"}
    VECTORS = frozenset(each for each, feature in _needed.items() if _features.get(feature))
else:
    VECTORS = frozenset()
"""Bytes of the elements for which this machine has such vectors."""

if VECTORS:

    class _Lanes:
        """The vectors of elements of so many bits, in a function that is being generated."""

        def __init__(self, builder: Any, array: Any) -> None:
            self.builder, self.bits = builder, array.dtype.bitwidth
            self.count = _WIDTH // self.bits
            self.element = ir.IntType(self.bits)
            self.vector = ir.VectorType(self.element, self.count)
            self.mask, self.marks = ir.VectorType(ir.IntType(1), self.count), ir.IntType(self.count)
            self.zeros = ir.Constant(self.vector, [0] * self.count)

        def at(self, address: Any, kind: Any) -> Any:
            return self.builder.inttoptr(address, kind.as_pointer())

        def load(self, address: Any, kind: Any) -> Any:
            return self.builder.load(self.at(address, kind), align=1)

        def store(self, value: Any, address: Any) -> None:
            self.builder.store(value, self.at(address, value.type), align=1)

        def some(self, vector: Any) -> Any:
            return self.builder.icmp_unsigned("!=", vector, self.zeros)

        def number(self, marks: Any) -> Any:
            ones = self.call(f"ctpop.i{self.count}", self.marks, marks)
            return self.builder.zext(ones, ir.IntType(64))

        def first(self, number: Any) -> Any:
            """A mask of so many."""
            kind = ir.VectorType(ir.IntType(64), self.count)
            nothing = ir.Constant(kind, ir.Undefined)
            one = self.builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
            same = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
            places = ir.Constant(kind, list(range(self.count)))
            return self.builder.icmp_signed(
                "<", places, self.builder.shuffle_vector(one, nothing, same)
            )

        def call(self, name: str, result: Any, *arguments: Any) -> Any:
            kind = ir.FunctionType(result, [a.type for a in arguments])
            function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}")
            return self.builder.call(function, arguments)

        @property
        def name(self) -> str:
            return f"v{self.count}i{self.bits}"

    @intrinsic  # type: ignore[untyped-decorator]
    def vector_counted(_: Any, like: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, signature.args[0])
            some = lanes.some(lanes.load(arguments[1], lanes.vector))
            return lanes.number(builder.bitcast(some, lanes.marks))

        return types.uint64(like, types.uint64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def vector_packed(_: Any, like: Any, given: Any, to: Any, limit: Any, bits: Any) -> Any:
        """`limit`: the address up to which may be written."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, given, to, limit, bits = arguments
            lanes = _Lanes(builder, signature.args[0])
            vector = lanes.load(given, lanes.vector)
            some = lanes.some(vector)
            marks = builder.bitcast(some, lanes.marks)
            lanes.store(marks, bits)
            number = lanes.number(marks)
            nothing = ir.Constant(lanes.vector, ir.Undefined)
            packed = lanes.call(
                f"experimental.vector.compress.{lanes.name}", lanes.vector, vector, some, nothing
            )
            after = builder.add(to, ir.Constant(ir.IntType(64), _WIDTH // 8))
            fits = builder.icmp_unsigned("<=", after, limit)
            with builder.if_else(fits, likely=True) as (whole, part):
                with whole:
                    lanes.store(packed, to)
                with part:
                    place, align = lanes.at(to, lanes.vector), ir.Constant(ir.IntType(32), 1)
                    lanes.call(
                        f"masked.store.{lanes.name}.p0", ir.VoidType(), packed, place, align, lanes.first(number),
                    )  # fmt: skip
            return number

        return types.uint64(like, *[types.uint64] * 4), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def vector_unpacked(_: Any, like: Any, packed: Any, bits: Any, to: Any) -> Any:
        """Reads as many numbers as there are bits set, and no more."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, packed, bits, to = arguments
            lanes = _Lanes(builder, signature.args[0])
            marks = lanes.load(bits, lanes.marks)
            place = lanes.at(packed, lanes.element)
            made = lanes.call(
                f"masked.expandload.{lanes.name}", lanes.vector,
                place, builder.bitcast(marks, lanes.mask), lanes.zeros,
            )  # fmt: skip
            lanes.store(made, to)
            return lanes.number(marks)

        return types.uint64(like, *[types.uint64] * 3), generate

else:
    # Never called, but loops are compiled with them.
    from lowtide.kernels.loops import inline

    @inline
    def vector_counted(like, given):  # type: ignore[no-untyped-def]
        return 0

    @inline
    def vector_packed(like, given, to, limit, bits):  # type: ignore[no-untyped-def]
        return 0

    @inline
    def vector_unpacked(like, packed, bits, to):  # type: ignore[no-untyped-def]
        return 0
