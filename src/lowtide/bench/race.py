"""Which of several variants of a step is right, which needs less memory, which is faster? Rows, and what follows from them.

Row            one variant: its peak, its times, whether it leaves what it should
Agreement      how far its results are from those of the eager step
interleave     times of all, taken in turn, so that what disturbs the machine disturbs all alike
Duel           Lowtide against one peer at that peer's own peak
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["TOLERANCE", "Agreement", "Duel", "Row", "budgets", "duels", "interleave"]

TOLERANCE = 1e-3
"""Relative error from which on a result is wrong and not rounded: other kernels give 1e-7 to 1e-4, another dropout mask 1e-1."""
_NEAR = 1.005
"""Peaks this close are one budget, the smaller of them."""


@dataclass(frozen=True)
class Agreement:
    """The worst relative errors against the eager step with the same seed; 0.0 for the same bits."""

    gradients: float = 0.0
    worst_gradient: str = ""
    buffers: float = 0.0
    worst_buffer: str = ""

    @property
    def wrong(self) -> bool:
        """Gradients: the model that is trained is another one."""
        return not self.gradients <= TOLERANCE

    @property
    def wrong_buffers(self) -> bool:
        """Such as running statistics: training goes on, evaluation is off."""
        return not self.buffers <= TOLERANCE

    def __str__(self) -> str:
        said = f"max rel. error {self.gradients:.0e}" if self.gradients else "same bits"
        if self.wrong:
            said = f"WRONG gradients: {self.gradients:.0e} in {self.worst_gradient}"
        if self.wrong_buffers:
            said += f"; WRONG buffers: {self.buffers:.0e} in {self.worst_buffer}"
        return said


@dataclass
class Row:
    """One variant of one model."""

    name: str
    rivals: tuple[str, ...] = ()
    """Of Lowtide: the peers whose peak is its budget."""
    budget: int | None = None
    """Of Lowtide, and of nobody else."""
    peak: int | None = None
    """Measured bytes, parameters and batch included."""
    agreement: Agreement | None = None
    ready_seconds: float = 0.0
    """Compiling or planning, and a first step."""
    predicted_peak: int | None = None
    predicted_overhead: float | None = None
    gap: float | None = None
    """How much slower than the best possible plan it may be, as far as the planner proved."""
    failed: str = ""
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        return _quartiles(self.times)

    @property
    def ours(self) -> bool:
        return self.budget is not None

    @property
    def right(self) -> bool:
        return not self.failed and self.agreement is not None and not self.agreement.wrong


def budgets(rows: Sequence[Row]) -> list[tuple[int, tuple[str, ...]]]:
    """Each peak that peers reached, ascending, with those for whom it is a fair budget to compare at."""
    found: list[tuple[int, tuple[str, ...]]] = []
    for peak, name in sorted((r.peak, r.name) for r in rows if r.peak is not None and not r.ours):
        if found and peak <= found[-1][0] * _NEAR:
            found[-1] = (found[-1][0], (*found[-1][1], name))
        else:
            found.append((peak, (name,)))
    return found


def interleave(
    steps: Mapping[str, Callable[[], None]],
    rounds: int,
    cleanup: Callable[[str], None] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[int, str, float]]:
    """(round, variant, seconds), each variant once per round; a first round is not counted. `cleanup` follows each step.

    Every other round runs backwards, so that nobody always follows the same neighbour.
    """
    names = list(steps)
    for number in range(-1, rounds):
        for name in reversed(names) if number % 2 else names:
            started = clock()
            steps[name]()
            seconds = clock() - started
            cleanup(name)
            if number >= 0:
                yield number, name, seconds


@dataclass(frozen=True)
class Duel:
    """Lowtide against one peer, at the peer's own peak."""

    peer: Row
    ours: Row

    @property
    def ratios(self) -> list[float]:
        """Lowtide's seconds over the peer's, round by round."""
        return [mine / theirs for mine, theirs in zip(self.ours.times, self.peer.times)]

    @property
    def ratio(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        return _quartiles(self.ratios)

    @property
    def verdict(self) -> str:
        """Who is faster. Even, where the middle half of the rounds holds both answers."""
        if self.ours.failed:
            return self.ours.failed
        if (self.ours.peak or 0) > (self.peer.peak or 0):
            return "Lowtide OVER the peer's peak"
        if not self.ours.right:
            return "Lowtide WRONG"
        if self.quartiles is None:
            return "not timed" if self.ratio is None else "one round is no verdict"
        low, high = self.quartiles
        found = "Lowtide faster" if high < 1 else "Lowtide slower" if low > 1 else "even"
        return found if self.peer.right else f"{found}, peer WRONG"


def duels(rows: Sequence[Row]) -> list[Duel]:
    ours = {rival: row for row in rows for rival in row.rivals}
    return [Duel(row, ours[row.name]) for row in rows if row.name in ours]


def _quartiles(numbers: Sequence[float]) -> tuple[float, float] | None:
    if len(numbers) < 2:
        return None
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return low, high
