"""How do torch's threads run a compiled loop at the same time, with no Python in between?

    @job
    def halve(place):
        index, count, barrier, told = enter(place)
        rows, columns, address = to_fixed_tuple(told, 3)
        for row in range(rows * index // count, rows * (index + 1) // count):
            ...  # of floats(address, rows, columns)

    halve.run(threads, rows, columns, tensor)

What a loop is told is a row of whole numbers: tensors are the addresses where they begin, and none is 0. That is read in no time. NumPy arrays,
as numba takes them otherwise, have to be made, and looked at by each thread in turn while it holds the interpreter: for a small layer of a
model as long as the loop itself. Each thread learns which of how many it is, and where to `wait` for the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from lowtide.kernels.loops import COMPILED, inline, team

__all__ = ["Job", "enter", "floats", "job", "to_fixed_tuple", "wait"]

_NUMBER, _COUNT, _BARRIER, _THREADS, _CAME, _HEAD = range(6)
"""What comes before the numbers that a loop is told: addresses of three functions, how many threads it is for, and whether they all came."""
_MOST = 64
"""Numbers in a row."""

if COMPILED:
    from llvmlite import ir
    from numba import carray, cfunc, types
    from numba.extending import intrinsic
    from numba.np.unsafe.ndarray import to_fixed_tuple


class Job:
    """A loop of (place), compiled when it is first run."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function

    @cached_property
    def address(self) -> int:
        compiled = cfunc(types.void(types.voidptr), cache=True)(self.function)
        return int(compiled.address)

    @cached_property
    def _alone(self) -> Callable[[int], None]:
        call: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
        return call

    def run(self, threads: int, *arguments: Tensor | int | None) -> int:
        """By so many threads if they come, and by one otherwise; how many there were."""
        told = [t.data_ptr() if isinstance(t, Tensor) else t or 0 for t in arguments]
        found = team() if threads > 1 else None
        if found is not None:
            numbers = _row(found.number_at, found.count_at, found.barrier, threads, 0, *told)
            found.start(self.address, ctypes.addressof(numbers), threads, 0)
            if numbers[_CAME]:
                return threads
        self._alone(ctypes.addressof(_row(0, 0, 0, 1, 1, *told)))
        return 1


def job(function: Callable[[Any], None]) -> Job:
    """Decorator."""
    return Job(function)


_Row = ctypes.c_int64 * _MOST


def _row(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return _Row(*numbers)


if COMPILED:

    @intrinsic  # type: ignore[untyped-decorator]
    def _pointer(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def _ask(_: Any, address: Any) -> Any:
        """What a C function of nothing answers."""

        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [])
            answer = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
            return builder.sext(answer, ir.IntType(64))

        return types.int64(types.int64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def _call(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
            return context.get_dummy_value()

        return types.void(types.int64), generate

else:
    to_fixed_tuple: Any = None


@inline
def enter(place):  # type: ignore[no-untyped-def]
    """Which of how many threads, where to wait for the others, and what they are told. Of no threads: too few have come, and nothing is to be done."""
    row = carray(place, (_MOST,), np.int64)
    told, threads = row[_HEAD:], row[_THREADS]
    if threads == 1:
        return 0, 1, 0, told
    if _ask(row[_COUNT]) != threads:
        return 0, 0, 0, told
    row[_CAME] = 1
    return _ask(row[_NUMBER]), threads, row[_BARRIER], told


@inline
def wait(barrier):  # type: ignore[no-untyped-def]
    """For all other threads."""
    if barrier:
        _call(barrier)


@inline
def floats(address, *shape):  # type: ignore[no-untyped-def]
    """The array that begins there, without gaps."""
    return carray(_pointer(address), shape, np.float32)
