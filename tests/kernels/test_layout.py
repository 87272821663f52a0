"""Channels first to channels last and back, into other memory and in place."""

from __future__ import annotations

import pytest
import torch

from lowtide.kernels import layout

SHAPES = [(3, 5, 7, 2), (1, 1, 4, 4), (2, 3, 1, 1), (0, 3, 2, 2), (2, 300, 3, 5), (3, 16, 40, 40)]
KINDS = [torch.float32, torch.float64, torch.float16, torch.bool, torch.complex64]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_to_channels_last_and_back(shape: tuple[int, ...], kind: torch.dtype) -> None:
    images = (torch.randn(shape) * 3).to(kind)
    wanted = images.clone(memory_format=torch.channels_last)
    made = layout.channels_last(images)
    assert torch.equal(made, wanted)
    assert made.is_contiguous(memory_format=torch.channels_last)
    back = layout.channels_first(made)
    assert torch.equal(back, images)
    assert back.is_contiguous()
    assert back.data_ptr() != images.data_ptr() or not images.numel()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_in_place(shape: tuple[int, ...], kind: torch.dtype) -> None:
    images = (torch.randn(shape) * 3).to(kind)
    wanted = images.clone(memory_format=torch.channels_last)
    before, place = images.clone(), images.data_ptr()
    moved = layout.channels_last_over(images)
    assert torch.equal(moved, wanted)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    back = layout.channels_first_over(moved)
    assert torch.equal(back, before)
    assert back.is_contiguous()
    assert place == moved.data_ptr() == back.data_ptr()


def test_without_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "COMPILED", False)
    images = torch.randn(2, 3, 5, 4)
    assert torch.equal(layout.channels_first(layout.channels_last(images)), images)


@pytest.mark.parametrize(
    "shape", [(3, 6, 7, 2), (2, 4, 1, 1), (5, 2, 3, 3), (0, 2, 2, 2), (1, 8, 2, 2)]
)
@pytest.mark.parametrize("count", [1, 2])
def test_in_parts_and_whole_again(shape: tuple[int, ...], count: int) -> None:
    images = torch.randn(shape)
    parts = layout.in_parts(images, count)
    assert torch.equal(torch.cat([*parts], 1), images)
    assert torch.equal(layout.whole(parts), images)
    before, place = images.clone(), images.data_ptr()
    over = layout.in_parts_over(images, count)
    assert torch.equal(over, parts)
    back = layout.whole_over(over)
    assert torch.equal(back, before)
    assert place == over.data_ptr() == back.data_ptr()
