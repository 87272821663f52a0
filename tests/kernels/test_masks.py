"""Gradients from one bit per element: the same bits as ATen's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lowtide.kernels import masks

SHAPES = [(0,), (1,), (7,), (8,), (3, 5), (2, 3, 7, 5), (4, 16, 33, 31)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
aten = torch.ops.aten


def special(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random, with zeros of both signs, infinities and NaNs among it."""
    x = torch.randn(shape, dtype=torch.float64).mul_(4)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 6.0])
    for i, value in enumerate(odd):
        x.view(-1)[i::11] = value
    return x.to(dtype)


def equal(one: Tensor, other: Tensor) -> None:
    assert one.stride() == other.stride()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    assert torch.equal(one.view(whole), other.view(whole))


@pytest.fixture(params=["loops", "torch ops"])
def looped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch ops":
        monkeypatch.setattr(masks, "COMPILED", False)


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_bit_is_enough(shape: tuple[int, ...], dtype: torch.dtype):
    x, g = special(*shape, dtype=dtype), special(*reversed(shape), dtype=dtype).reshape(shape)
    equal(masks.masked(g, masks.pack_above(x, 0.0)), aten.threshold_backward(g, x, 0))
    number = x.nan_to_num(posinf=torch.inf, neginf=-torch.inf)
    equal(
        masks.masked(g, masks.pack_inside(number, 0.0, 6.0)),
        aten.hardtanh_backward(g, number, 0, 6),
    )
    equal(
        masks.scaled(g, masks.pack_above(x, 0.0), 1.0, 0.1),
        aten.leaky_relu_backward(g, x, 0.1, False),
    )
    kept = torch.rand(shape) > 0.3
    equal(
        masks.scaled(g, masks.pack_true(kept), 1 / 0.7, 0.0),
        aten.native_dropout_backward(g, kept, 1 / 0.7),
    )


def test_in_the_order_of_memory():
    x = torch.randn(2, 5, 7, 9).contiguous(memory_format=torch.channels_last)
    g = torch.randn(2, 5, 7, 9).contiguous(memory_format=torch.channels_last)
    equal(masks.masked(g, masks.pack_above(x, 0.5)), aten.threshold_backward(g, x, 0.5))
