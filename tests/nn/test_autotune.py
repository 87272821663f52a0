"""Which way of an LSTM layer is run: measured once, kept, explained, and not asked for where it is forced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lowtide
from lowtide.cost.store import Cost
from lowtide.errors import OptionError
from lowtide.kernels.loops import COMPILED
from lowtide.nn import autotune

pytestmark = pytest.mark.skipif(not COMPILED, reason="without numba torch's ops run")


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    autotune._known.clear()
    yield
    autotune._known.clear()


def test_measured_once_and_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 4, 8)
    first = autotune.explain(x, 8)
    assert first.best() in first.costs
    autotune._known.clear()  # as in another process
    monkeypatch.setattr(autotune, "_measured", None)
    assert autotune.explain(torch.randn(5, 4, 8), 8).costs == first.costs


def test_torch_is_chosen_only_where_memory_does_not_count() -> None:
    tuned = autotune.Tuned("", {"fused panels 1024": Cost(2.0, 4), "fused torch 1024": Cost(3.0, 4), "onednn": Cost(1.0, 15)})  # fmt: skip
    assert tuned.best() == "fused panels 1024"
    assert tuned.best(any_memory=True) == "onednn"
    lines = str(tuned).splitlines()
    assert "torch" in lines[2]
    assert "keep='any'" in lines[2]
    assert lines[3].endswith("chosen")


@pytest.mark.parametrize(("seconds", "chosen"), [(1.99, "fused torch 1024"), (1.9, "fused torch 1024 cells")])  # fmt: skip
def test_more_is_kept_only_where_it_is_clearly_faster(seconds: float, chosen: str) -> None:
    costs = {"fused torch 1024": Cost(2.0, 4), "fused torch 1024 cells": Cost(seconds, 5)}
    assert autotune.Tuned("", costs).best() == chosen


@pytest.mark.parametrize("kernel", ["fused panels 512", "fused torch 2048 cells", "onednn"])
def test_a_kernel_can_be_forced(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "explain", None)
    torch.manual_seed(0)
    theirs, ours = torch.nn.LSTM(20, 24), lowtide.nn.LSTM(20, 24)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(70, 33, 20)
    theirs(x)[0].square().sum().backward()
    with autotune.use(kernel):
        ours(x)[0].square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


def test_only_kernels_can_be_forced() -> None:
    with pytest.raises(OptionError, match="fused panels 1024"), autotune.use("fast"):
        pass
