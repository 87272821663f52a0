"""A byte per number: how far off what comes back may be, and that no sum is biased."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lowtide.kernels import bytes as kernel
from lowtide.kernels.bytes import BLOCK, as_bytes, from_bytes, size_in_bytes


def there_and_back(x: Tensor) -> Tensor:
    small = as_bytes(x)
    assert len(small) == size_in_bytes(x.numel())
    return from_bytes(small, list(x.shape), list(x.stride()))


@pytest.fixture(params=[True, False], ids=["loops", "torch"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(kernel, "COMPILED", False)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (BLOCK,), (7, 33, 19), (300, 257)])
def test_each_comes_back_within_its_blocks_scale(shape: tuple[int, ...]):
    x = torch.randn(shape) * torch.linspace(0.01, 100, max(1, shape[-1]))[: shape[-1]]
    back = there_and_back(x)
    assert back.stride() == x.stride()
    for number, returned in zip(x.view(-1).split(BLOCK), back.view(-1).split(BLOCK), strict=True):
        scale = number.abs().max() / 127 if len(number) else 0
        assert (number - returned).abs().max() <= scale * 1.0001 if len(number) else True


@pytest.mark.usefixtures("either_way")
def test_elements_stay_where_they_lie():
    x = torch.randn(4, 6, 5, 7).to(memory_format=torch.channels_last)
    back = there_and_back(x)
    assert back.stride() == x.stride()
    assert (back - x).abs().max() < x.abs().max() / 127 * 1.0001


@pytest.mark.usefixtures("either_way")
def test_zeros_and_the_largest_are_exact():
    x = torch.zeros(2 * BLOCK)
    x[BLOCK + 3] = -5.0
    assert torch.equal(there_and_back(x), x)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_not_hidden(bad: float):
    x = torch.ones(2 * BLOCK)
    x[5] = bad
    back = there_and_back(x)
    assert back[:BLOCK].isnan().all()
    assert torch.equal(back[BLOCK:], x[BLOCK:])


def test_rounding_is_not_biased():
    """A remainder of 0.3 is rounded up 3 times of 10: to the nearest, the mean would be off by 0.3 of a scale."""
    x = torch.full((BLOCK * 400,), 0.3) + torch.rand(BLOCK * 400) * 1e-3
    x[::BLOCK] = 127.0
    others = torch.ones(len(x), dtype=torch.bool)
    others[::BLOCK] = False
    assert there_and_back(x)[others].mean().item() == pytest.approx(0.3, abs=0.01)


def test_loops_and_torch_agree(monkeypatch: pytest.MonkeyPatch):
    x = torch.randn(1000)
    looped = as_bytes(x)
    monkeypatch.setattr(kernel, "COMPILED", False)
    apart = (as_bytes(x).view(torch.int8).int() - looped.view(torch.int8).int())[16:].abs()
    assert apart.max() <= 1
    assert apart.float().mean() < 0.01
