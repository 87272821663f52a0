"""exp, the logistic function and tanh of compiled loops, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowtide.kernels.elementary import LANES, Vectors

numba = pytest.importorskip("numba")


def over_numbers(function: Callable[[Vectors, Any], Any]) -> Callable[[Any], Any]:
    """`function` on all numbers of an array, the last of which do not fill a vector."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def run(_: Any, source: Any, target: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            source, target, count = arguments
            numbers, long = Vectors(builder), ir.IntType(64)
            vectors = builder.udiv(builder.add(count, ir.Constant(long, LANES - 1)), ir.Constant(long, LANES))  # fmt: skip
            with cgutils.for_range(builder, vectors) as loop:
                done = builder.mul(loop.index, ir.Constant(long, LANES))
                mask = numbers.mask(builder.sub(count, done))
                place = builder.mul(done, ir.Constant(long, 4))
                made = function(numbers, numbers.load(builder.add(source, place), mask))
                numbers.store(made, builder.add(target, place), mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    @numba.njit  # not cached: what it calls may have changed
    def all_of(x: Any, y: Any) -> None:
        run(x.ctypes.data, y.ctypes.data, x.size)

    def of(x: Any) -> Any:
        given = np.asarray(x, np.float32)
        made = np.full(len(given) + LANES, 7, np.float32)
        all_of(given, made)
        assert (made[len(given) :] == 7).all()  # nothing is written beyond
        return made[: len(given)]

    return of


sigmoids = over_numbers(lambda numbers, x: numbers.sigmoid(x))
tanhs = over_numbers(lambda numbers, x: numbers.tanh(x))


def spaced() -> Any:
    near = np.linspace(-12, 12, 200_001)
    return np.concatenate([near, near * 1e-3, near * 7, np.logspace(-30, 1, 1000)])


@pytest.mark.parametrize(
    ("run", "wanted"),
    [(sigmoids, lambda x: 1 / (1 + np.exp(-x))), (tanhs, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_within_five_units_in_the_last_place(run: Any, wanted: Any) -> None:
    x = spaced().astype(np.float32)
    exact = wanted(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(run(x) - exact) / unit) <= 5


def test_ends() -> None:
    ends = [-np.inf, -1e30, -200, 200, 1e30, np.inf]
    assert np.array_equal(tanhs(ends), [-1, -1, -1, 1, 1, 1])
    low, high = sigmoids(ends)[:3], sigmoids(ends)[3:]
    assert np.all(low < 1e-37)
    assert np.all(high == 1)
    assert np.isnan(tanhs([np.nan])).all()
    assert np.isnan(sigmoids([np.nan])).all()
    assert np.signbit(tanhs([-0.0]))[0]
