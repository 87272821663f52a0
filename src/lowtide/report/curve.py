"""What does each amount of memory cost in time? The points of the frontier's picture; `report/compare.py` computes them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEVICES", "Curve", "Spot"]

DEVICES = tuple(size * 2**30 for size in (8, 12, 16, 24, 32, 40, 48, 80))
"""Bytes of common devices."""


@dataclass(frozen=True, slots=True)
class Spot:
    name: str
    peak: int
    seconds: float


@dataclass(frozen=True)
class Curve:
    line: tuple[Spot, ...]
    """From the smallest peak to the fastest step."""
    baselines: tuple[Spot, ...]
    chosen: Spot | None = None
    """The plan that the report is about."""
    budget: int | None = None
    seconds: float = 0.0
    """Of the unplanned step."""
