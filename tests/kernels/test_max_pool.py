"""Pools that make four bits per window: ATen's values and places, to the bit."""

from __future__ import annotations

import pytest
import torch

from lowtide.kernels.loops import COMPILED
from lowtide.kernels.max_pool import max_pool
from lowtide.kernels.pooling import pack_indices

SHAPES = [(2, 3, 7, 9), (1, 1, 16, 16), (3, 2, 33, 20), (2, 70, 70), (2, 1, 130, 65), (1, 2, 4, 4)]
GEOMETRY = [
    ([2, 2], [2, 2], [0, 0], False),
    ([3, 3], [2, 2], [1, 1], False),
    ([3, 3], [1, 1], [1, 1], False),
    ([3, 3], [2, 2], [0, 0], True),
    ([3, 2], [2, 1], [1, 0], False),
    ([2, 3], [3, 2], [0, 1], True),
    ([4, 4], [2, 2], [2, 2], False),
    ([1, 1], [1, 1], [0, 0], False),
]
KINDS = ["normal", "ties", "nan", "infinite"]


def images(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    if kind == "ties":
        return x.relu()
    if kind == "nan":
        x[torch.rand(shape) < 0.2] = float("nan")
        x[torch.rand(shape) < 0.2] = -0.0
    if kind == "infinite":
        x[torch.rand(shape) < 0.8] = -float("inf")
    return x


@pytest.mark.skipif(not COMPILED, reason="is offered only where loops are compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
def test_values_and_places_are_atens(geometry: tuple, kind: str, dtype: torch.dtype):
    torch.manual_seed(0)
    kernel, stride, padding, ceil = geometry
    tried = 0
    for shape in SHAPES:
        x = images(shape, kind, dtype)
        if any(n + 2 * p < k for n, p, k in zip(shape[-2:], padding, kernel, strict=True)):
            continue
        values, indices = torch.ops.aten.max_pool2d_with_indices(
            x, kernel, stride, padding, [1, 1], ceil
        )
        made, packed = max_pool(x, *values.shape[-2:], kernel, stride, padding)
        assert torch.equal(made.isnan(), values.isnan())
        assert torch.equal(made.nan_to_num(7.0), values.nan_to_num(7.0))
        assert torch.equal(made.signbit(), values.signbit())
        assert torch.equal(packed, pack_indices(indices, shape[-1], kernel, stride, padding))
        tried += 1
    assert tried >= len(SHAPES) - 1
