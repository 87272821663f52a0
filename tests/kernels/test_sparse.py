"""Tensors without their zeros: the same bits come back whatever they are, however they lie and whichever way they were packed."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from lowtide.kernels import sparse as kernel
from lowtide.kernels.sparse import nonzero, with_zeros, without_zeros
from lowtide.rules.sparse import PARTS, packed_bytes

WAYS = ("vectors", "loops", "torch")
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BLOCK = kernel._BLOCK


def choose(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "vectors" and not kernel.VECTORS:
        pytest.skip("this machine has none")
    if way != "vectors":
        monkeypatch.setattr(kernel, "VECTORS", frozenset())
    if way == "torch":
        monkeypatch.setattr(kernel, "COMPILED", False)


@pytest.fixture(params=WAYS)
def any_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(request.param, monkeypatch)


def bits(x: Tensor) -> Tensor:
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


def check(x: Tensor) -> Tensor:
    small = without_zeros(x, PARTS)
    assert len(small) == packed_bytes(x.numel(), 0, 0) + nonzero(x) * x.element_size()
    back = with_zeros(small, list(x.shape), list(x.stride()), x.dtype)
    assert (back.shape, back.stride(), back.dtype) == (x.shape, x.stride(), x.dtype)
    assert torch.equal(bits(back), bits(x))
    assert back.untyped_storage().data_ptr() not in {x.data_ptr(), small.data_ptr()} or not x.numel()  # fmt: skip
    return small


def thinned(x: Tensor, share: float) -> Tensor:
    return x.masked_fill(torch.rand(x.shape) >= share, 0)


SIZES = [0, 1, 7, 8, 9, 31, 63, 64, 65, 1000, BLOCK - 1, BLOCK, BLOCK + 3, 5 * BLOCK - 9]


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_the_same_bits_come_back(kind: torch.dtype, share: float):
    for size in SIZES:
        check(thinned(torch.randn(size), share).to(kind))


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_only_plus_zero_is_zero(kind: torch.dtype):
    x = torch.zeros(200, dtype=kind)
    odd = [-0.0, float("nan"), float("inf"), float("-inf"), torch.finfo(kind).smallest_normal / 2]
    x[3 : 3 + len(odd)] = torch.tensor(odd, dtype=kind)
    x[150] = x[4].neg()  # another NaN
    assert nonzero(x) == len(odd) + 1
    small = check(x)
    assert len(small) == 4 * 8 + 6 * x.element_size(), "four words of bits"


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 3 * BLOCK - 1])
def test_one_number_among_zeros_and_one_zero_among_numbers(at: int):
    x = torch.zeros(3 * BLOCK)
    x[at] = -3.0
    check(x)
    x = torch.ones(3 * BLOCK)
    x[at] = 0.0
    check(x)


@pytest.mark.usefixtures("any_way")
def test_blocks_do_not_write_into_each_other():
    """Full and empty ones in turn, on two threads: what is stored behind a block's numbers must not last."""
    x = torch.randn(40, BLOCK)
    x[::2] = 0
    x[1::4, : BLOCK // 2] = 0
    x[3::4, BLOCK // 2 :] = 0
    for _ in range(5):
        check(x)


@pytest.mark.usefixtures("any_way")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_dense_tensors_that_lie_otherwise(kind: torch.dtype):
    x = thinned(torch.randn(3, 5, 7, 11), 0.4).to(kind)
    check(x.to(memory_format=torch.channels_last))
    check(x.permute(3, 1, 0, 2))


def test_all_ways_pack_alike(monkeypatch: pytest.MonkeyPatch):
    x = thinned(torch.randn(3 * BLOCK + 77), 0.5)
    made = [without_zeros(x, PARTS)]
    for way in WAYS[1:]:
        choose(way, monkeypatch)
        made.append(without_zeros(x, PARTS))
    assert all(torch.equal(made[0], one) for one in made[1:])


def test_nothing_holds_on_to_the_tensor():
    x = thinned(torch.randn(1000), 0.5)
    small = without_zeros(x, PARTS)
    expected = x.clone()
    x.fill_(7.0)
    assert torch.equal(with_zeros(small, [1000], [1], x.dtype), expected)


@pytest.mark.usefixtures("any_way")
def test_what_was_not_planned_for_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kernel, "_told", set())
    x = torch.ones(1000)
    x[:400] = 0
    with caplog.at_level(logging.WARNING, "lowtide"):
        without_zeros(x, 10)
        assert not caplog.records, "625 have room"
        for _ in range(2):
            without_zeros(x, 8)
    (said,) = [r.message for r in caplog.records]
    assert "60% are not zero" in said
    assert "room for 50%" in said
    assert "400 B" in said


def test_the_compiler_is_told_what_comes_out():
    x = torch.randn(4, 6, 5, 7).to(memory_format=torch.channels_last)
    where = (list(x.shape), list(x.stride()), x.dtype)
    torch.library.opcheck(with_zeros, (without_zeros(x, PARTS), *where))
    with torch._subclasses.FakeTensorMode() as mode:
        made = without_zeros(mode.from_tensor(x), 9)
    assert len(made) == packed_bytes(x.numel(), 4, 9)
