"""Which batch sizes are worth a try, and what came of it? First those that find the largest that fits, then that one and a few smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lowtide.errors import OptionError
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Timed", "best_size", "largest_size", "size_table", "sizes_to_time", "where_it_ends"]

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


def largest_size(
    fits: Callable[[int], bool],
    start: int,
    most: int,
    aim: Callable[[], float | None] = lambda: None,
) -> int:
    """To within a few percent. By doubling until one does not fit, then by halving the distance; sooner where `aim` can say from what was tried
    about where the largest is. 0: not even 1 fits."""
    if not 1 <= start <= most:
        raise OptionError(f"start={start} and most={most}: the first batch is from 1 to the last")
    low, high, size = 0, 0, start
    while low < most and high != 1:
        if fits(size):
            low = size
        else:
            high = size
        if low and high and high - low <= max(1, int(_NEAR * low)):
            break
        size = _next_size(low, high, aim()) if high else _larger(low, most, aim())
    return low


def _larger(low: int, most: int, aim: float | None) -> int:
    """As long as all fit: what is aimed at, or double."""
    found = next((size for size in _around(aim) if size > low), 2 * low)
    return min(found, most)


def _next_size(low: int, high: int, aim: float | None) -> int:
    """Between one that fits, or 0, and one that does not."""
    middle = (low + high) // 2 if low else high // 2
    return next((size for size in _around(aim) if low < size < high), middle)


def _around(aim: float | None) -> tuple[int, ...]:
    """Right below and right above."""
    return () if aim is None else (int(aim * (1 - _NEAR / 3)), int(aim * (1 + _NEAR / 2)))


def where_it_ends(needs: Mapping[int, int], budget: int) -> float | None:
    """The size that needs the budget, by a line through what the two largest sizes need; None if there is none."""
    sizes = sorted(size for size in needs if needs[size])[-2:]
    if len(sizes) < 2 or needs[sizes[0]] >= needs[sizes[1]]:
        return None
    one, other = sizes
    each = (needs[other] - needs[one]) / (other - one)
    return other + (budget - needs[other]) / each


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
