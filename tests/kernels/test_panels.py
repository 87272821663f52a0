"""Products by panels, against NumPy: whatever the sizes, and nothing is written beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowtide.kernels import panels
from lowtide.kernels.panels import WIDTH

numba = pytest.importorskip("numba")


@numba.njit  # not cached: what it calls may have changed
def run(across: bool, a: Any, first: int, last: int, by: Any, other: Any, add: bool, c: Any, d: Any) -> None:  # fmt: skip
    copied = panels.scratch()
    if across:
        panels.multiply_across(a, first, last, by, other, add, c, d, copied)
    else:
        panels.multiply(a, by, add, c, first, last, copied)


@numba.njit
def copy(weights: Any, first: int, last: int, to: Any) -> None:
    half = len(to) // 2
    panels.copy_rows(weights, first, last, to, 0, half)
    panels.copy_rows(weights, first, last, to, half, len(to))


def panelled(weights: Any) -> Any:
    """(k, n) as panels of columns; what is missing of the last one is not a number."""
    length, columns = weights.shape
    made = np.full((-(-columns // WIDTH), length, WIDTH), np.nan, np.float32)
    for column in range(columns):
        made[column // WIDTH, :, column % WIDTH] = weights[:, column]
    return made


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 33, 200, 411])
@pytest.mark.parametrize(("length", "columns"), [(20, 160), (530, 132), (1100, 150), (16, 16)])
def test_as_it_is(rows: int, length: int, columns: int, add: bool) -> None:
    a, weights = drawn(rows, length), drawn(length, columns)
    first, last = 3, 3 + columns  # not from edge to edge
    before = drawn(rows, columns + 5)
    c = before.copy()
    run(False, a, first, last, panelled(weights), c[None], add, c, c)
    wanted = before.astype(np.float64)
    wanted[:, first:last] = wanted[:, first:last] * add + a.astype(np.float64) @ weights
    np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (3, 8), (5, 40), (0, 37)])
@pytest.mark.parametrize("length", [3, 600])
def test_transposed(length: int, first: int, last: int, add: bool) -> None:
    a, weights, others = drawn(length, 40), drawn(length, 50), drawn(length, 32)
    before = drawn(40, 50), drawn(40, 32)
    c, d = (one.copy() for one in before)
    run(True, a, first, last, panelled(weights), panelled(others), add, c, d)
    for made, was, by in zip((c, d), before, (weights, others), strict=True):
        wanted = was.astype(np.float64)
        rows = a.T.astype(np.float64)[first:last]
        # The first row of the result is the first of these columns.
        wanted[first:last] = wanted[first:last] * add + rows @ by
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_not_wanted_is_left_out() -> None:
    a, weights = drawn(30, 40), drawn(30, 50)
    c, nothing = drawn(40, 50), np.empty((0, 0), np.float32)
    run(True, a, 0, 40, panelled(weights), panelled(weights), False, c, nothing)
    np.testing.assert_allclose(c, a.T @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (4, 24), (32, 35), (0, 35), (2, 34)])
def test_rows_become_columns(first: int, last: int) -> None:
    weights = drawn(4, 35, 21)
    wanted = np.nan_to_num(panelled(weights[:, first:last].reshape(-1, 21).T))
    made = np.full_like(wanted, np.nan)
    copy(weights, first, last, made)
    np.testing.assert_array_equal(made, wanted)
