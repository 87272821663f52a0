"""How fast does a script train once its plan runs? Counts its steps, and stops it after some if that was asked for.

A step is from one update of an optimizer to the next of the same one; in a script without optimizers, from one training call of a module to the next.
"""

from __future__ import annotations

import statistics
import time
import weakref

import torch
from torch import nn

__all__ = ["Pace"]


class Pace:
    def __init__(self, wanted: int = 0) -> None:
        self.wanted = wanted
        self.ends: list[float] = []
        self.by: weakref.ref[object] | None = None
        """Whose updates or calls are counted: the first seen."""

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        self.count(optimizer)

    def called(self, module: nn.Module, has_optimizers: bool) -> None:
        if not has_optimizers:
            self.count(module)

    def count(self, one: object) -> None:
        if not self.wanted:
            return
        if self.by is None:
            self.by = weakref.ref(one)
        if self.by() is one:
            self.ends.append(time.perf_counter())
            if len(self.ends) > self.wanted:
                raise SystemExit(0)

    @property
    def seconds(self) -> float | None:
        """Of a step."""
        found = [end - start for start, end in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.median(found) if found else None
