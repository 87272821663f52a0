"""exp, the logistic function and tanh of compiled loops, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowtide.kernels import elementary

numba = pytest.importorskip("numba")


@numba.njit  # not cached: what it calls may have changed
def _sigmoids(first, last, x, y):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        y[k] = elementary.sigmoid(x[k])


@numba.njit
def _tanhs(first, last, x, y):  # type: ignore[no-untyped-def]
    for k in range(first, last):
        y[k] = elementary.tanh(x[k])


def of(run: Callable[..., None], x: Any) -> Any:
    given = np.asarray(x, np.float32)
    made = np.empty_like(given)
    run(0, len(given), given, made)
    return made


def spaced() -> Any:
    near = np.linspace(-12, 12, 200_001)
    return np.concatenate([near, near * 1e-3, near * 7, np.logspace(-30, 1, 1000)])


@pytest.mark.parametrize(
    ("run", "wanted"),
    [(_sigmoids, lambda x: 1 / (1 + np.exp(-x))), (_tanhs, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_within_five_units_in_the_last_place(run: Any, wanted: Any) -> None:
    x = spaced().astype(np.float32)
    exact = wanted(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(of(run, x) - exact) / unit) <= 5


def test_ends() -> None:
    ends = [-np.inf, -1e30, -200, 200, 1e30, np.inf]
    assert np.array_equal(of(_tanhs, ends), [-1, -1, -1, 1, 1, 1])
    low, high = of(_sigmoids, ends)[:3], of(_sigmoids, ends)[3:]
    assert np.all(low < 1e-37)
    assert np.all(high == 1)
    assert np.isnan(of(_tanhs, [np.nan])).all()
    assert np.isnan(of(_sigmoids, [np.nan])).all()
    assert np.signbit(of(_tanhs, [-0.0]))[0]
