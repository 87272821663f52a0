"""How large a batch fits a budget, and which trains fastest? Memory turned into speed.

A budget buys two things: a larger batch, which uses the processor better, and less recomputation, which a smaller batch needs. Where the best
of both lies no model tells, so a few batches are planned, run and timed.

The largest is found by planning alone: what two sizes need at least says about where it is, and sizes around that are tried. Then that one and smaller ones, each
about 1.4 times the next, run a few steps in turn, all within the budget.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lowtide.errors import BudgetError
from lowtide.execute.fitting import Fitting
from lowtide.execute.session import Options
from lowtide.measure.preserve import preserved
from lowtide.measure.step import Loss, Step
from lowtide.plan.plan import Plan
from lowtide.plan.sizes import (
    Timed,
    best_size,
    largest_size,
    size_table,
    sizes_to_time,
    where_it_ends,
)
from lowtide.units import format_bytes

__all__ = ["Batch", "Batches", "Trials", "find_batches"]

_ROUNDS = 3
_QUICK = 5.0
"""Seconds to plan, where only the answer counts whether there is a plan."""


@dataclass(frozen=True)
class Batch(Timed):
    """One size, and the plan it was measured with."""

    plan: Plan


@dataclass(frozen=True)
class Batches:
    """What `lowtide.largest_batch` returns."""

    timed: tuple[Batch, ...]
    """From the smallest to the largest that fits."""

    @property
    def largest(self) -> int:
        return self.timed[-1].size

    @property
    def best(self) -> int:
        """The size with the most samples per second."""
        return best_size(self.timed)

    def __str__(self) -> str:
        return size_table(self.timed)


class Trials:
    """Plans for batches of different sizes. Each is run by a copy of the model with the same parameters."""

    def __init__(
        self,
        make_batch: Callable[[int], Any],
        model: nn.Module,
        options: Options,
        optimizer: torch.optim.Optimizer | None,
        loss: Loss | None,
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets a line for each size that was tried: all of them together take minutes."""
        self.make_batch, self.model, self.options = make_batch, model, options
        self.optimizer, self.loss, self.tell = optimizer, loss, tell
        self.refusal: BudgetError | None = None
        self.needs: dict[int, int] = {}
        """The smallest peak found for each size that was tried."""

    def fitting(self, size: int, options: Options) -> Fitting:
        twin = copy.deepcopy(self.model, {id(p): p for p in self.model.parameters()})
        return Fitting(twin, self.make_batch(size), {}, options, self.optimizer, self.loss)

    def fits(self, size: int) -> bool:
        quick = replace(self.options, seconds=min(self.options.seconds, _QUICK))
        try:
            self.needs[size] = self.fitting(size, quick).run(verify=False).floor
        except BudgetError as error:
            self.refusal, self.needs[size] = error, error.floor
            self.tell(f"batch {size}: does not fit, needs {format_bytes(error.floor)}")
            return False
        self.tell(f"batch {size}: fits")
        return True

    def aim(self) -> float | None:
        budget = self.options.budget.bytes
        return None if budget is None else where_it_ends(self.needs, budget)

    def timed(self, sizes: Sequence[int]) -> tuple[Batch, ...]:
        """The largest first, so that what was refused after all leaves out none but itself."""
        steps: dict[int, Step] = {}
        plans: dict[int, Plan] = {}
        for size in sizes:
            fitting = self.fitting(size, self.options)
            try:
                plans[size] = fitting.run(verify=True)
            except BudgetError:
                self.tell(f"batch {size}: fits by simulation, and not when it was measured")
                continue
            self.tell(f"batch {size}: planned, to be timed")
            steps[size] = fitting.step
        times: dict[int, list[float]] = {size: [] for size in steps}
        for number in range(-1, _ROUNDS):
            for size, step in steps.items():
                seconds = self.seconds(step)
                if number >= 0:
                    times[size].append(seconds)
        return tuple(_batch(size, times[size], plans[size]) for size in sorted(steps))

    def seconds(self, step: Step) -> float:
        with preserved(step.model, step.args):
            started = time.perf_counter()
            step()
            for device in {p.device for p in step.model.parameters() if p.device.type != "cpu"}:
                torch.get_device_module(device).synchronize(device)
            return time.perf_counter() - started


def _batch(size: int, times: Sequence[float], plan: Plan) -> Batch:
    peak = plan.measured_peak or plan.peak
    return Batch(size, statistics.median(times), peak, plan.overhead, plan)


def find_batches(trials: Trials, start: int, most: int) -> Batches:
    largest = largest_size(trials.fits, start, most, trials.aim)
    found = trials.timed(sizes_to_time(largest)) if largest else ()
    if not found:
        assert trials.refusal is not None, "all were refused"
        raise trials.refusal
    return Batches(found)
