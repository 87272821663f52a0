"""The largest batch within a budget: found by halves, run for real, and the model left alone."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.errors import OptionError
from lowtide.execute.batches import Trials, find_batches
from lowtide.plan.sizes import largest_size, where_it_ends


class Limited(Trials):
    """Batches up to a limit fit, and nothing is planned."""

    def __init__(self, limit: int) -> None:
        self.limit, self.asked = limit, 0
        self.refusal = lowtide.BudgetError("too small", floor=1)

    def fits(self, size: int) -> bool:
        self.asked += 1
        return size <= self.limit

    def aim(self) -> None:
        return None


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 100, 1000, 4096])
@pytest.mark.parametrize("start", [1, 8, 300])
def test_the_largest_is_found_to_six_percent(limit: int, start: int) -> None:
    trials = Limited(limit)
    found = largest_size(trials.fits, start, 4096)
    assert 0.94 * limit - 1 <= found <= limit
    assert trials.asked <= 24


def test_if_all_fit_it_is_the_most_and_if_none_does_a_refusal() -> None:
    assert largest_size(Limited(10**9).fits, 8, 5000) == 5000
    with pytest.raises(lowtide.BudgetError):
        find_batches(Limited(0), 8, 64)


@pytest.mark.parametrize("limit", [9, 100, 1000, 4000])
@pytest.mark.parametrize("wrong", [0.0, 0.05, -0.3, 5.0])
def test_what_sizes_need_leads_to_the_largest_soon_and_misleads_to_nothing_worse(
    limit: int, wrong: float
) -> None:
    needs: dict[int, int] = {}
    bytes_each, base, budget = 1000, 50_000, 50_000 + 1000 * limit

    def fits(size: int) -> bool:
        needs[size] = base + int(bytes_each * size * (1 + wrong * (size > limit / 3)))
        return size <= limit

    found = largest_size(fits, 8, 4096, lambda: where_it_ends(needs, budget))
    assert 0.94 * limit - 1 <= found <= limit
    assert len(needs) <= (5 if wrong == 0 else 14)


def make_batch(size: int) -> tuple[Tensor]:
    return (torch.randn(size, 64),)


@pytest.mark.usefixtures("estimated")
def test_real_batches_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = sys.modules[largest_size.__module__]  # `lowtide.plan` is a function
    monkeypatch.setattr(sizes, "_TIMED", 2)
    monkeypatch.setattr(sizes, "_NEAR", 0.4)
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh())))  # fmt: skip
    before = copy.deepcopy(model.state_dict())
    said: list[str] = []
    found = lowtide.largest_batch(
        make_batch, model, budget="2MiB", start=512, seconds=1.0, tell=said.append
    )
    assert found.largest >= 256
    assert f"batch {found.largest}: fits" in said
    assert sum("planned, to be timed" in line for line in said) == 2
    assert any("does not fit, needs" in line for line in said)
    assert len(found.timed) == 2
    assert found.best in {b.size for b in found.timed}
    for one in found.timed:
        assert one.plan.measured_peak is not None
        assert one.plan.measured_peak <= 2 * 2**20
        assert one.per_second > 0
    assert "best" in str(found)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model._compiled_call_impl is None


def test_refusals() -> None:
    model = nn.Linear(64, 64)
    with pytest.raises(OptionError, match="in bytes"):
        lowtide.largest_batch(make_batch, model, budget="50%")
    with pytest.raises(OptionError, match="start=9"):
        lowtide.largest_batch(make_batch, model, budget="2MiB", start=9, most=8)
