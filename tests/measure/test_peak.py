"""Peaks are what `torch.profiler` says they are, to the byte, whatever else is running."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lowtide.measure.peak import available_bytes, held_bytes, measure_peak, record

CPU = torch.device("cpu")
MIB = 2**20


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8)


def by_kineto(step: Callable[[], object]) -> int:
    """The definition in the acceptance checks, word for word."""
    gc.collect()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as recorded:
        step()
    events = [
        (e.start_ns(), e.nbytes())
        for e in recorded.profiler.kineto_results.events()
        if e.name() == "[memory]"
    ]
    now = most = 0
    for _, size in sorted(events, key=lambda e: e[0]):
        now += size
        most = max(most, now)
    return most


@pytest.fixture
def training() -> Callable[[], None]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3),
        nn.GELU(),
    )
    images = torch.randn(4, 3, 32, 32)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(images).square().mean().backward()
        net.zero_grad(set_to_none=True)

    step()
    return step


def test_known_allocations() -> None:
    def step() -> None:
        kept = mebibytes(3)
        mebibytes(5)
        mebibytes(4)
        del kept
        mebibytes(7)

    assert measure_peak(step) == 8 * MIB
    assert measure_peak(step, held=100) == 8 * MIB + 100


def test_it_is_what_the_checks_measure(training: Callable[[], None]) -> None:
    expected = by_kineto(training)
    assert expected > 4 * 16 * 32 * 32 * 4
    assert measure_peak(training) == expected
    assert by_kineto(training) == expected


def test_what_is_left_is_told_apart_from_the_peak() -> None:
    recording = record(lambda: (mebibytes(2), mebibytes(3).numel()), CPU)
    assert (recording.peak, recording.left) == (5 * MIB, 2 * MIB)
    assert recording.result[1] == 3 * MIB


def test_a_profiler_that_runs_already_goes_on(training: Callable[[], None]) -> None:
    alone = measure_peak(training)
    one = torch.ones(10)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as session:
        one + one
        assert measure_peak(training) == alone
        one * one
    names = {event.name for event in session.events()}
    assert {"aten::add", "aten::mul"} <= names
    assert "aten::convolution" not in names


def test_inside_another_measurement() -> None:
    inner: list[int] = []

    def step() -> None:
        kept = mebibytes(1)
        inner.append(measure_peak(lambda: mebibytes(6)))
        del kept

    assert measure_peak(step) == MIB
    assert inner == [6 * MIB]


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_stay_on_or_off_beside_a_profiler(grad: bool) -> None:
    seen = []
    with profile(activities=[ProfilerActivity.CPU]), torch.set_grad_enabled(grad):
        measure_peak(lambda: seen.append(torch.is_grad_enabled()))
    assert seen == [grad]


def test_a_step_that_fails_leaves_no_profiler_behind() -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        measure_peak(step)
    assert not torch._C._autograd._profiler_enabled()
    assert measure_peak(lambda: mebibytes(1)) == MIB


def test_without_the_older_profiler(
    monkeypatch: pytest.MonkeyPatch, training: Callable[[], None]
) -> None:
    expected = measure_peak(training)
    monkeypatch.setattr("lowtide.measure.peak._LegacyProfile", None)
    assert measure_peak(training) == expected


def test_held_counts_storages_once() -> None:
    base = torch.zeros(100)
    assert held_bytes(base, base[:10], [base.view(10, 10), {"x": (base,)}]) == 400
    assert held_bytes(base[:10]) == 400
    assert held_bytes(1, "x", None, {}) == 0


def test_held_by_modules_and_optimizers() -> None:
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8))
    net[1].weight = net[0].weight
    own = 8 * 8 * 4 + 4 * 8 * 4 + 8
    assert held_bytes(net) == own
    net(torch.ones(2, 8)).sum().backward()
    assert held_bytes(net) == own
    optimizer = torch.optim.Adam(net.parameters())
    assert held_bytes(optimizer) == own - 2 * 8 * 4 - 8
    optimizer.step()
    parameters = [p for p in net.parameters() if p.grad is not None]
    state = 2 * sum(p.numel() for p in parameters) * 4 + 4 * len(parameters)
    assert held_bytes(net, optimizer, list(net.parameters())) == own + state


def test_held_by_dataclasses_and_sparse_tensors_and_cycles() -> None:
    @dataclass
    class Batch:
        images: torch.Tensor
        extra: list[object]

    loop: list[object] = [torch.zeros(5)]
    loop.append(loop)
    assert held_bytes(Batch(torch.zeros(10), loop)) == 60
    sparse = torch.eye(4).to_sparse()
    assert held_bytes(sparse) == 4 * 4 + 4 * 2 * 8


def test_something_is_available() -> None:
    assert MIB < available_bytes(CPU) < 2**50
