"""What does one step of an LSTM layer do besides products? All of it for one sample in one pass over its units, sixteen at a time.

Addresses are integers; one that is 0 stands for something that is not wanted. Of the four gates of a sample each is so many bytes after the
one before, and so are their biases and gradients. Their sums, before activation, are a thread's own and lie closer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.kernels.elementary import LANES, Vector, Vectors
from lowtide.kernels.loops import COMPILED

__all__ = ["cell", "cell_again", "cell_back"]

if COMPILED:
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic


class _Units:
    """Some of a sample's units, while the loop over them is being written."""

    def __init__(self, builder: Any, place: Any, mask: Any, gate: Any) -> None:
        self.builder, self.place, self.mask, self.gate = builder, place, mask, gate
        self.numbers = Vectors(builder)

    def at(self, address: Any, gate: int = 0) -> Any:
        further = self.builder.mul(self.gate, ir.Constant(ir.IntType(64), gate))
        return self.builder.add(self.builder.add(address, self.place), further)

    def load(self, address: Any, gate: int = 0) -> Vector:
        return self.numbers.load(self.at(address, gate), self.mask)

    def store(self, vector: Vector, address: Any, gate: int = 0) -> None:
        self.numbers.store(vector, self.at(address, gate), self.mask)

    def wanted(self, address: Any) -> Any:
        return self.builder.if_then(cgutils.is_not_null(self.builder, address))


def _over_units(body: Callable[..., None], addresses: int) -> Any:
    """An intrinsic of (count, gate, *addresses) that runs `body` on all units."""

    @intrinsic  # type: ignore[untyped-decorator]
    def run(_: Any, count: Any, gate: Any, places: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            count, gate, places = arguments
            given = cgutils.unpack_tuple(builder, places, addresses)
            long = ir.IntType(64)
            vectors = builder.sdiv(builder.add(count, ir.Constant(long, LANES - 1)), ir.Constant(long, LANES))  # fmt: skip
            with cgutils.for_range(builder, vectors) as loop:
                done = builder.mul(loop.index, ir.Constant(long, LANES))
                mask = Vectors(builder).mask(builder.sub(count, done))
                units = _Units(builder, builder.mul(done, ir.Constant(long, 4)), mask, gate)
                body(units, *given)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.UniTuple(types.int64, addresses)), generate  # fmt: skip

    return run


def _forward(
    units: _Units, sums: Any, near: Any, gates: Any, bias: Any, c: Any, y: Any, cells: Any
) -> None:
    n = units.numbers
    own = _Units(units.builder, units.place, units.mask, near)
    i, f, g, o = (own.load(sums, k) + units.load(bias, k) for k in range(4))
    activated = n.sigmoid(i), n.sigmoid(f), n.tanh(g), n.sigmoid(o)
    for k, gate in enumerate(activated):
        units.store(gate, gates, k)
    _finish(units, activated, c, y, cells)


def _again(units: _Units, gates: Any, c: Any, y: Any, cells: Any) -> None:
    """The gates are known."""
    i, f, g, o = (units.load(gates, k) for k in range(4))
    _finish(units, (i, f, g, o), c, y, cells)


def _finish(units: _Units, gates: tuple[Vector, ...], c: Any, y: Any, cells: Any) -> None:
    i, f, g, o = gates
    added = units.numbers.fused(i, g, units.numbers.zero)
    state = units.numbers.fused(f, units.load(c), added)  # the same bits in both that come here
    units.store(state, c)
    with units.wanted(cells):
        units.store(state, cells)
    with units.wanted(y):
        units.store(o * units.numbers.tanh(state), y)


def _backward(
    units: _Units, gates: Any, cells: Any, before: Any, arriving: Any, dh: Any, dc: Any, changes: Any, db: Any
) -> None:  # fmt: skip
    builder = units.builder
    i, f, g, o = (units.load(gates, k) for k in range(4))
    total = cgutils.alloca_once_value(builder, units.load(dh).value)
    with units.wanted(arriving):
        sum_ = Vector(builder, builder.load(total)) + units.load(arriving)
        builder.store(sum_.value, total)
    down = Vector(builder, builder.load(total))
    squashed = units.numbers.tanh(units.load(cells))
    of_cell = down * o * (squashed * squashed).complement() + units.load(dc)
    made = (
        of_cell * g * (i * i.complement()),
        of_cell * units.load(before) * (f * f.complement()),
        of_cell * i * (g * g).complement(),
        down * squashed * (o * o.complement()),
    )
    units.store(of_cell * f, dc)
    for k, change in enumerate(made):
        units.store(change, changes, k)
    with units.wanted(db):
        for k, change in enumerate(made):
            units.store(units.load(db, k) + change, db, k)


if COMPILED:
    cell, cell_again, cell_back = (
        _over_units(_forward, 7),
        _over_units(_again, 4),
        _over_units(_backward, 8),
    )
