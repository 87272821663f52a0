"""Which batch sizes are worth a try, and what came of it? First those that find the largest that fits, then that one and a few smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.errors import OptionError
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Timed", "best_size", "largest_size", "size_table", "sizes_to_time"]

_NEAR = 0.06
"""The largest is found to within this part of it."""
_RATIO = 2**0.5
_TIMED = 5
"""Sizes, at most."""


@dataclass(frozen=True)
class Timed:
    """A batch that was planned and run."""

    size: int
    seconds: float
    """Of a step, measured."""
    peak: int
    overhead: float
    """Predicted."""

    @property
    def per_second(self) -> float:
        """Samples."""
        return self.size / self.seconds


def largest_size(fits: Callable[[int], bool], start: int, most: int) -> int:
    """Doubling until one does not fit, then halving the distance. 0: not even 1 does."""
    if not 1 <= start <= most:
        raise OptionError(f"start={start} and most={most}: the first batch is from 1 to the last")
    low, high = 0, start
    while low < most and fits(high):
        low, high = high, min(2 * high, most)
    if low == most:
        return most
    while low == 0:
        if high == 1:
            return 0
        if fits(high // 2):
            low = high // 2
        else:
            high //= 2
    while high - low > max(1, int(_NEAR * low)):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def sizes_to_time(largest: int) -> list[int]:
    """The largest first."""
    return sorted({max(1, round(largest / _RATIO**k)) for k in range(_TIMED)}, reverse=True)


def best_size(found: Sequence[Timed]) -> int:
    """The one with the most samples per second."""
    return max(found, key=lambda one: one.per_second).size


def size_table(found: Sequence[Timed]) -> str:
    best, most = best_size(found), max(one.per_second for one in found)
    lines = ["   batch   samples/s   step time   recomputing        peak"]
    for one in found:
        bar = "#" * round(20 * one.per_second / most)
        lines.append(
            f"{one.size:8d} {one.per_second:11.1f} {format_seconds(one.seconds):>11} {format_percent(one.overhead):>13} "
            f"{format_bytes(one.peak):>11}  {bar}{' best' if one.size == best else ''}"
        )
    return "\n".join(lines)
