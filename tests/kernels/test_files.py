"""Tensors in a file: the same bits back, places used again, nothing left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lowtide.kernels import files
from lowtide.kernels.files import moved, moved_back


def back(ticket: Tensor, like: Tensor) -> Tensor:
    return moved_back(ticket, list(like.shape), list(like.stride()), like.dtype, like.device)


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[files._File]:
    one = files._File()
    monkeypatch.setattr(files, "_file", lambda: one)
    yield one
    one.file.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(0,), (1,), (5, 7, 3)])
def test_the_same_bits(file: files._File, shape: tuple[int, ...], dtype: torch.dtype):
    x = (torch.randn(shape) * 100).to(dtype)
    assert torch.equal(back(moved(x), x), x)


def test_layout_is_kept(file: files._File):
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = back(moved(x), x)
    assert found.stride() == x.stride()
    assert torch.equal(found, x)


def test_tickets_are_independent_and_can_be_used_twice(file: files._File):
    a, b = torch.randn(1000), torch.randn(1000)
    one, two = moved(a), moved(b)
    for _ in range(2):
        assert torch.equal(back(one, a), a)
        assert torch.equal(back(two, b), b)


def test_a_place_is_used_again_once_its_ticket_is_gone(file: files._File):
    x = torch.randn(1000)
    for _ in range(5):
        ticket = moved(x)
        assert torch.equal(back(ticket, x), x)
        del ticket
        gc.collect()
    assert file.end == 4000


def test_the_file_has_no_name(file: files._File):
    assert os.fstat(file.file.fileno()).st_nlink == 0
