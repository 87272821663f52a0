"""How does a step's memory look in one line of text?

Goes in: `(seconds, bytes)`, from that moment on so many bytes are allocated. Comes out: a line of bars.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

__all__ = ["SHORTEST", "Points", "columns", "sparkline"]

Points = Sequence[tuple[float, int]]

SHORTEST = 1e-9
"""Seconds; a step that takes no time is drawn as if it took this."""
_BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def sparkline(points: Points, *, width: int = 60, top: int | None = None) -> str:
    """The timeline as one line of bars; `top` is what a full bar stands for."""
    if not points:
        return ""
    end = max(points[-1][0], SHORTEST)
    full = max(top or 0, *(size for _, size in points), 1)
    highest = dict(columns(points, width / end, width))
    return "".join(
        _BARS[math.ceil((len(_BARS) - 1) * highest.get(column, 0) / full)]
        for column in range(width)
    )


def columns(points: Points, scale: float, count: int) -> Iterator[tuple[int, int]]:
    """For each column of the picture the most bytes within it: no peak is lost, however short."""
    highest: dict[int, int] = {}
    for (start, size), (end, _) in zip(points, [*points[1:], points[-1]]):
        first, last = int(start * scale), math.ceil(end * scale) - 1
        for column in range(min(first, count - 1), min(max(first, last), count - 1) + 1):
            highest[column] = max(highest.get(column, 0), size)
    yield from sorted(highest.items())
