"""Max-pool gradients from indices and from four bits per window, alone and with those of a ReLU before: the same bits as ATen's."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lowtide.kernels import pooling

aten = torch.ops.aten


class Pool(NamedTuple):
    height: int
    width: int
    kernel: int
    stride: int
    padding: int
    ceil: bool = False

    def geometry(self) -> tuple[list[int], list[int], list[int]]:
        kernel, stride, padding = ([n, n] for n in self[2:5])
        return kernel, stride, padding


POOLS = [
    Pool(8, 8, 2, 2, 0),
    Pool(9, 7, 2, 2, 0),
    Pool(9, 7, 2, 2, 0, ceil=True),
    Pool(130, 127, 2, 2, 0),
    Pool(13, 11, 3, 2, 1),
    Pool(12, 14, 3, 2, 1),
    Pool(6, 9, 3, 1, 1),
    Pool(5, 5, 4, 3, 2),
    Pool(3, 3, 3, 1, 1),
    Pool(7, 9, 2, 3, 0),
]
INPUTS = ["normal", "many equal", "none positive", "all zero", "special"]


def inputs(kind: str, pool: Pool, dtype: torch.dtype) -> Tensor:
    x = torch.randn(3, 5, pool.height, pool.width, dtype=torch.float64)
    match kind:
        case "many equal":
            x = x.round()
        case "none positive":
            x = -x.abs()
        case "all zero":
            x = torch.where(x > 0, 0.0, -0.0)
        case "special":
            scatter(x, torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0, 0.0)
    return x.to(dtype)


def gradients(like: Tensor) -> Tensor:
    g = torch.randn_like(like)
    return scatter(g, 0.0, -0.0, -0.0, torch.inf, -torch.inf, torch.nan)


def scatter(x: Tensor, *odd: float) -> Tensor:
    """Some of the numbers replaced by each of these."""
    kind = torch.randint(0, 5 * len(odd), x.shape)
    for i, value in enumerate(odd):
        x[kind == i] = value
    return x


def equal(one: Tensor, other: Tensor) -> None:
    """To the bit; which of two NaNs their sum is, nobody promises."""
    assert (one.stride(), one.dtype) == (other.stride(), other.dtype)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    bits = [torch.where(t.isnan(), torch.nan, t).view(whole) for t in (one, other)]
    assert torch.equal(*bits)


@pytest.fixture(params=["loops", "torch ops"])
def looped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "torch ops":
        monkeypatch.setattr(pooling, "COMPILED", False)
    return bool(pooling.COMPILED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("pool", POOLS)
def test_pool_gradients(looped: bool, pool: Pool, kind: str, dtype: torch.dtype):
    x = inputs(kind, pool, dtype)
    check(looped, pool, x, x, (0.0, None), lambda g: g, with_output=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("pool", POOLS)
def test_with_those_of_a_relu_before(looped: bool, pool: Pool, kind: str, dtype: torch.dtype):
    x = inputs(kind, pool, dtype).relu()
    check(looped, pool, x, x, (0.0, None), lambda g: aten.threshold_backward(g, x, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("pool", POOLS)
def test_with_those_of_a_hardtanh_before(looped: bool, pool: Pool, kind: str, dtype: torch.dtype):
    given = inputs(kind, pool, dtype)
    given = given.nan_to_num(posinf=torch.inf, neginf=-torch.inf)  # ATen is of two minds on NaN
    x, low, high = aten.hardtanh(given, -0.1, 0.7), -0.1, 0.7
    check(
        looped, pool, x, given, (low, high), lambda g: aten.hardtanh_backward(g, given, low, high)
    )


def check(looped, pool, x, given, bounds, blocked, with_output=True):  # type: ignore[no-untyped-def]
    """`blocked`: what the captured backward makes of the pool's gradient."""
    geometry = pool.geometry()
    rest = (*geometry, [1, 1], pool.ceil)
    y, indices = aten.max_pool2d_with_indices(x, *rest)
    g = gradients(y)
    expected = blocked(aten.max_pool2d_with_indices_backward(g, x, *rest, indices))
    sizes, plane = list(x.shape), list(x.shape[-2:])
    last = (y, *bounds) if with_output else ()
    equal(pooling.gradient_from_indices(g, indices, sizes, plane, *rest, *last), expected)
    if looped and x.dtype != torch.bfloat16:
        packed = pooling.pack_indices(indices, plane[1], *geometry)
        assert packed.numel() <= (indices.numel() + 5 * 3 * pool.height) // 2
        equal(pooling.gradient_from_packed(g, packed, sizes, plane, *geometry, *last), expected)


def test_without_places_that_are_real_nothing_else_is_written():
    """As when it is measured: packed places that are all zero, so that windows at the edge begin before the plane."""
    g, packed = torch.ones(1, 1, 4, 4), torch.zeros(4, 2, dtype=torch.uint8)
    made = pooling.gradient_from_packed(g, packed, [1, 1, 7, 7], [7, 7], [3, 3], [2, 2], [1, 1])
    assert made.sum() == 16


def test_what_is_made_may_have_another_shape():
    x = torch.randn(2, 3, 1, 10).relu()
    rest = ([1, 2], [1, 2], [0, 0], [1, 1], False)
    y, indices = aten.max_pool2d_with_indices(x, *rest)
    expected = aten.max_pool2d_with_indices_backward(y, x, *rest, indices).squeeze(2)
    made = pooling.gradient_from_indices(y, indices, [2, 3, 10], [1, 10], *rest, y)
    assert torch.equal(made, expected)
