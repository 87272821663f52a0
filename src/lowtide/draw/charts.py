"""How does the memory of a step look over time? Pictures from plain numbers, without a drawing library.

Goes in: timelines, each a sequence of `(seconds, bytes)`: from that moment on so many bytes are allocated. Comes out: text, either one
self-contained SVG (`timeline_svg`) or one line for the terminal (`sparkline`). Nothing here knows where the numbers come from;
simulated and measured timelines are drawn alike.

The SVG carries its own light and dark colours and its own background, so that it reads on any page; blue and orange stay apart for
colour-blind readers, and what matters (outline, fill, dashes) differs in form as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from lowtide.draw.sparkline import SHORTEST, Points, columns, sparkline
from lowtide.units import format_bytes, format_seconds

__all__ = ["STYLE", "Points", "sparkline", "ticks", "timeline_svg"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 96, 92, 52
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 17px; font-weight: 600 }
.quiet { fill: #59636e }
.page { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #e4e8ec }
.axis { stroke: #8b949e }
.before { fill: none; stroke: #2b3138; stroke-width: 1.6; stroke-linejoin: round }
.after { fill: #2f7ec7; fill-opacity: .85; stroke: #1c5f9e; stroke-width: 1; stroke-linejoin: round }
.budget { stroke: #c2500b; stroke-width: 1.8; stroke-dasharray: 7 5 }
.limit { fill: #b3480a; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.quiet { fill: #9198a1 }
.page { fill: #0d1117; stroke: #30363d }
.grid { stroke: #21262d }
.axis { stroke: #6e7681 }
.before { stroke: #b1bac4 }
.after { fill: #2f7ec7; stroke: #6cb0f0 }
.budget { stroke: #f0883e }
.limit { fill: #f0883e }
}
""".strip()


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a moment and a size are on the page."""

    width: int
    height: int
    seconds: float
    bytes: float

    @property
    def columns(self) -> int:
        return self.width - _LEFT - _RIGHT

    def x(self, seconds: float) -> float:
        return _LEFT + self.columns * seconds / self.seconds

    def y(self, size: float) -> float:
        return self.height - _BOTTOM - (self.height - _TOP - _BOTTOM) * size / self.bytes


def timeline_svg(
    before: Points,
    after: Points,
    budget: int | None = None,
    *,
    title: str = "Memory of one training step",
    before_label: str = "unplanned",
    after_label: str = "planned",
    width: int = 860,
    height: int = 400,
) -> str:
    """The step before (outline) and after (filled), and the budget as a line; each where there is one."""
    seconds = max([SHORTEST, *(t for t, _ in [*before, *after])])
    top = max([budget or 0, *(size for _, size in [*before, *after])])
    frame = _Frame(width, height, seconds, 1.06 * (top or 1))
    parts = [
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{_LEFT}" y="34">{escape(title)}</text>',
        *_legend(before_label, before, after_label, after),
        *_size_axis(frame),
        *_time_axis(frame),
        f'<path class="after" d="{_path(frame, after, closed=True)}"/>',
        f'<path class="before" d="{_path(frame, before)}"/>',
        *(_budget_line(frame, budget) if budget is not None else ()),
    ]
    named = ((before_label, before), (after_label, after))
    described = [f"{label}: peak {_peak(points)}" for label, points in named if points]
    described += [] if budget is None else [f"budget {format_bytes(budget)}"]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape('; '.join(described))}</desc>",
            f"<style>\n{STYLE}\n</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _path(frame: _Frame, points: Points, *, closed: bool = False) -> str:
    """Steps, one level per pixel column; repeated levels are drawn once."""
    if not points:
        return ""
    end = points[-1][0]
    levels = list(columns(points, frame.columns / frame.seconds, frame.columns))
    floor = f"{frame.y(0):.1f}"
    drawn = [f"M{_LEFT + levels[0][0]} {floor}"]
    level = 0
    for column, size in levels:
        if size != level:
            drawn.append(f"H{_LEFT + column}V{frame.y(size):.1f}")
            level = size
    drawn.append(f"H{frame.x(end):.1f}V{floor}" + ("Z" if closed else ""))
    return "".join(drawn)


def _legend(before_label: str, before: Points, after_label: str, after: Points) -> Iterator[str]:
    x = float(_LEFT)
    for style, label, points in (("before", before_label, before), ("after", after_label, after)):
        if not points:
            continue
        words = f"peak {_peak(points)} in {format_seconds(points[-1][0])}"
        yield f'<rect class="{style}" x="{x:.0f}" y="52" width="22" height="13"/>'
        yield (
            f'<text x="{x + 30:.0f}" y="63">{escape(label)} '
            f'<tspan class="quiet">{escape(words)}</tspan></text>'
        )
        x += 60 + 7.2 * (len(label) + len(words))


def _size_axis(frame: _Frame) -> Iterator[str]:
    unit = next((u for u in (2**30, 2**20, 2**10) if frame.bytes >= 0.8 * u), 1)
    name = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}.get(unit, "B")
    right = frame.width - _RIGHT
    for tick in ticks(frame.bytes / unit, 5):
        y = f"{frame.y(tick * unit):.1f}"
        yield f'<path class="{"grid" if tick else "axis"}" d="M{_LEFT} {y}H{right}"/>'
        label = f"{tick:g} {name}"
        yield f'<text class="quiet" x="{_LEFT - 9}" y="{y}" dy="4.5" text-anchor="end">{label}</text>'


def _time_axis(frame: _Frame) -> Iterator[str]:
    unit, name = (1.0, "s") if frame.seconds >= 1 else (1e-3, "ms")
    floor = frame.height - _BOTTOM
    for tick in ticks(frame.seconds / unit, 8):
        x = f"{frame.x(tick * unit):.1f}"
        yield f'<path class="axis" d="M{x} {floor}v5"/>'
        yield f'<text class="quiet" x="{x}" y="{floor + 21}" text-anchor="middle">{tick:g}</text>'
    middle = _LEFT + frame.columns / 2
    yield (
        f'<text class="quiet" x="{middle:.0f}" y="{floor + 41}" text-anchor="middle">'
        f"time in the step ({name})</text>"
    )


def _budget_line(frame: _Frame, budget: int) -> Iterator[str]:
    y, right = frame.y(budget), frame.width - _RIGHT
    yield f'<path class="budget" d="M{_LEFT} {y:.1f}H{right}"/>'
    yield f'<text class="limit" x="{right + 9}" y="{y - 3:.1f}">budget</text>'
    yield f'<text class="limit" x="{right + 9}" y="{y + 13:.1f}">{format_bytes(budget)}</text>'


def ticks(most: float, about: int) -> Iterator[float]:
    """Round numbers from zero to `most`, roughly `about` of them."""
    rough = most / about
    scale = 10.0 ** math.floor(math.log10(rough))
    step = scale * next(n for n in (1, 2, 2.5, 5, 10) if n * scale >= rough * 0.999)
    for index in range(int(most / step + 1e-9) + 1):
        yield round(index * step, 9)


def _peak(points: Points) -> str:
    return format_bytes(max((size for _, size in points), default=0))
