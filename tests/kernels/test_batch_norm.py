"""Statistics of a batch norm side by side, and normalising, adding and activating in one pass: the same bits as ATen's ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lowtide.kernels.batch_norm import activated, as_captured, counted
from lowtide.kernels.loops import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="loops need numba")
aten = torch.ops.aten
SHAPES = [(24, 32, 16, 16), (3, 5, 7, 3), (4, 11, 9, 1), (2, 17, 5, 5), (5, 9, 33)]
FLAT = [(6, 8, 1, 1), (16, 40)]
"""Planes of one number: ATen takes them as channels last, and adds up in another order. The probe tells."""


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A tensor, and weight, bias, running mean and running variance."""
    channels = shape[1]
    x = torch.randn(shape, dtype=dtype) * 3 + torch.randn(
        channels, *[1] * (len(shape) - 2), dtype=dtype
    )
    return [x, torch.randn(channels, dtype=dtype), torch.randn(channels, dtype=dtype), torch.randn(channels, dtype=dtype), torch.rand(channels, dtype=dtype)]  # fmt: skip


@pytest.mark.parametrize("momentum", [0.1, 0.003, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_statistics(shape: tuple[int, ...], momentum: float):
    x, weight, bias, *running = operands(shape)
    _, *expected = aten._native_batch_norm_legit_functional(x, weight, bias, *running, True, momentum, 1e-5)  # fmt: skip
    nothing, *found = counted(x, *running, momentum, 1e-5)
    assert nothing is None
    for name, one, other in zip(("mean", "rstd", "running mean", "running var"), found, expected):
        assert torch.equal(one, other), name


@pytest.mark.filterwarnings("error")
def test_channels_that_do_not_vary_and_such_that_are_no_numbers():
    x, weight, bias, *running = operands((4, 12, 6, 6))
    x[:, 3], x[1, 7, 2, 2], x[0, 9, 0, 0], running[0][7] = 5.0, torch.inf, torch.nan, -torch.inf
    _, *expected = aten._native_batch_norm_legit_functional(x, weight, bias, *running, True, 0.1, 1e-5)  # fmt: skip
    for one, other in zip(counted(x, *running, 0.1, 1e-5)[1:], expected):
        assert torch.equal(one.isnan(), other.isnan())  # type: ignore[union-attr]
        assert torch.equal(one.nan_to_num(), other.nan_to_num())  # type: ignore[union-attr]


CHAINS: dict[str, tuple[bool, tuple[Any, ...], tuple[float | None, float | None]]] = {
    "relu": (False, ((aten.relu.default, ()),), (0.0, None)),
    "hardtanh": (False, ((aten.hardtanh.default, (-0.5, 1.5)),), (-0.5, 1.5)),
    "sum": (True, (), (None, None)),
    "sum and relu": (True, ((aten.relu.default, ()),), (0.0, None)),
}


@pytest.mark.parametrize("over", ["", "x", "plus"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("shape", SHAPES + FLAT, ids=str)
def test_in_one_pass_as_in_several(
    shape: tuple[int, ...], chain: str, dtype: torch.dtype, over: str
):
    adds, calls, bounds = CHAINS[chain]
    x, weight, bias, *running = operands(shape, dtype)
    x.view(-1)[::13], x.view(-1)[5::17] = torch.nan, -0.0
    plus = torch.randn_like(x) if adds else None
    if over == "plus" and plus is None:
        pytest.skip("nothing is added")
    _, mean, rstd, *_ = aten._native_batch_norm_legit_functional(x.nan_to_num(), weight, bias, *running, True, 0.1, 1e-5)  # fmt: skip
    for w, b in ((weight, bias), (None, None)):
        expected = as_captured(x, w, b, mean, rstd, plus, calls)
        given = {"x": x.clone(), "plus": None if plus is None else plus.clone()}
        found = activated(given["x"], w, b, mean, rstd, given["plus"], *bounds, over=given.get(over))  # fmt: skip
        assert not over or found is given[over]
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(), expected.nan_to_num())
        assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())
