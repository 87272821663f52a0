"""How do a step's memory and a frontier look on a page? Shapes in SVG that stretch with the page, words in HTML that do not.

Places are shares of the plot, so that one page reads at any width; every word from a file is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from lowtide.draw.charts import ticks
from lowtide.draw.sparkline import SHORTEST
from lowtide.draw.sparkline import columns as highest_of
from lowtide.report.curve import DEVICES, Curve, Spot
from lowtide.report.kinds import colour
from lowtide.report.picture import COLUMNS, Picture
from lowtide.report.sampling import Sampled
from lowtide.report.steps import spans
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["frontier_plot", "frontier_rows", "timeline_plot"]

_HIGH = 1000
"""Height of a plot in its own units; its width is `COLUMNS`."""
_MARKS = ("\u25a0", "\u25b2", "\u25c6", "\u2715", "\u25cf")
_FREE = 1.08
"""Room above the highest."""
_STEEP = 2.5
"""The frontier shows so many times the extra time of the slowest baseline."""
_NARROW = 7.0
"""Percent of the width below which a phase gets no name."""


def timeline_plot(picture: Picture) -> str:
    top = _FREE * max([step.step.peak for step in picture.steps] + [picture.budget or 1])
    parts = [
        *_size_lines(top),
        _timeline_shapes(picture, top),
        *_cuts(picture),
        *_budget(picture, top),
        *(_peak(i, s, top) for i, s in enumerate(picture.steps)),
        '<div class="cursor" id="cursor" hidden></div>',
    ]
    words = "; ".join(f"{s.step.name}: peak {format_bytes(s.step.peak)}" for s in picture.steps)
    label = escape(f"Memory over one step. {words}. Arrow keys move, p goes to the peak.")
    return (
        '<div class="chart">'
        f'<div class="plot" id="plot" tabindex="0" role="application" aria-label="{label}">{"".join(parts)}</div>'
        f"{_time_ticks(picture)}{''.join(_phase_bars(picture))}</div>"
    )


def _timeline_shapes(picture: Picture, top: float) -> str:
    groups = []
    for index, sampled in enumerate(picture.steps):
        areas = "".join(_areas(sampled, top))
        groups.append(f'<g data-step="{index}"{" hidden" if index else ""}>{areas}</g>')
    if len(picture.steps) > 1:
        for index, sampled in enumerate(picture.steps):
            totals = [(i.column, i.total) for i in sampled.instants]
            d = _stairs(totals, sampled.columns, top)
            hidden = "" if index else " hidden"
            groups.append(f'<path class="outline" data-not-step="{index}"{hidden} d="{d}"/>')
    if picture.observed:
        scale = COLUMNS / picture.span
        levels = list(highest_of(picture.observed, scale, COLUMNS))
        end = min(COLUMNS, round(picture.observed[-1][0] * scale))
        groups.append(f'<path class="observed" d="{_stairs(levels, end, top)}"/>')
    return _svg("".join(groups))


def _svg(inside: str) -> str:
    return f'<svg viewBox="0 0 {COLUMNS} {_HIGH}" preserveAspectRatio="none" aria-hidden="true">{inside}</svg>'


def _areas(sampled: Sampled, top: float) -> Iterator[str]:
    """Each from the floor to the sum of all below it; the highest first, so that the others are drawn over it."""
    for place in reversed(range(len(sampled.kinds))):
        sums = [(i.column, sum(i.kinds[: place + 1])) for i in sampled.instants]
        name = escape(sampled.kinds[place])
        fill = colour(sampled.kinds[place])
        yield f'<path class="area" fill="{fill}" d="{_stairs(sums, sampled.columns, top)}Z"><title>{name}</title></path>'


def _stairs(levels: Sequence[tuple[int, int]], end: int, top: float) -> str:
    """From the floor up, along, and down to the floor; repeated heights are drawn once."""
    if not levels:
        return ""
    drawn = [f"M{levels[0][0]} {_HIGH}"]
    before = _HIGH
    for column, size in levels:
        y = round(_HIGH * (1 - size / top))
        if y != before:
            drawn.append(f"H{column}V{y}")
            before = y
    return "".join(drawn) + f"H{end}V{_HIGH}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _size_lines(top: float) -> Iterator[str]:
    unit = next((u for u in (2**30, 2**20, 2**10) if top >= 0.8 * u), 1)
    name = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}.get(unit, "B")
    for tick in ticks(top / unit, 5):
        yield f'<div class="grid" style="top:{_percent(1 - tick * unit / top)}"><span>{tick:g} {name}</span></div>'


def _time_ticks(picture: Picture) -> str:
    timed = all(step.step.timed for step in picture.steps)
    unit, name = (1.0, " s") if picture.span >= 1 else (1e-3, " ms")
    if not timed:
        unit, name = 1.0, " ops"
    span = picture.span / unit or 1.0
    marks = [tick for tick in ticks(span, 5) if tick <= 0.96 * span]
    spans = (f'<span style="left:{_percent(t / span)}">{t:g}{name}</span>' for t in marks)
    return f'<div class="ticks zero">{"".join(spans)}</div>'


def _cuts(picture: Picture) -> Iterator[str]:
    for index, sampled in enumerate(picture.steps):
        for _, start in sampled.step.phases[1:]:
            left = _percent(start / picture.span) if picture.span else "0"
            yield f'<div class="cut" data-step="{index}" style="left:{left}"></div>'


def _phase_bars(picture: Picture) -> Iterator[str]:
    for sampled in picture.steps:
        bars = []
        for name, start, end in spans(sampled.step.phases, sampled.step.seconds):
            if picture.span and end > start:
                wide = 100 * (end - start) / picture.span
                words = escape(name) if wide >= _NARROW else ""
                place = f"left:{_percent(start / picture.span)};width:{wide:.2f}%"
                bars.append(f'<span style="{place}" title="{escape(name)}">{words}</span>')
        label = f"<b>{escape(sampled.step.name)}</b>" if len(picture.steps) > 1 else ""
        yield f'<div class="phases">{label}{"".join(bars)}</div>'


def _budget(picture: Picture, top: float) -> Iterator[str]:
    if picture.budget is not None:
        place = _percent(1 - picture.budget / top)
        words = f"budget {format_bytes(picture.budget)}"
        yield f'<div class="limit" style="top:{place}"><span>{words}</span></div>'


def _peak(index: int, sampled: Sampled, top: float) -> str:
    if sampled.top < 0:
        return ""
    instant = sampled.instants[sampled.top]
    left = (instant.column + 0.5) / COLUMNS
    side = " left" if left < 0.12 else " right" if left > 0.88 else ""
    place = f"left:{_percent(left)};top:{_percent(1 - instant.total / top)}"
    words = f"peak {format_bytes(instant.total)}"
    hidden = " hidden" if index else ""
    return f'<div class="peak{side}" data-step="{index}"{hidden} style="{place}"><span>{words}</span></div>'


class _Frame:
    """Where a peak and a step time are in the frontier's plot."""

    def __init__(self, curve: Curve) -> None:
        spots = [*curve.line, *curve.baselines, *([curve.chosen] if curve.chosen else [])]
        peaks = [spot.peak for spot in spots] + ([curve.budget] if curve.budget else [])
        times = [spot.seconds for spot in spots]
        wide = max(peaks) - min(peaks) or max(peaks) or 1
        self.low, self.high = max(0.0, min(peaks) - 0.12 * wide), max(peaks) + 0.06 * wide
        least = min(times)
        most = max(times)
        if curve.baselines:  # the steep end of the curve would hide all else
            most = min(most, least + _STEEP * (max(s.seconds for s in curve.baselines) - least))
        most = max(
            [most, 1.02 * least, least + SHORTEST]
            + ([curve.chosen.seconds] if curve.chosen else [])
        )
        room = 0.08 * (most - least)
        self.least, self.most = least - room, most + room

    def x(self, peak: float) -> float:
        return (peak - self.low) / (self.high - self.low)

    def y(self, seconds: float) -> float:
        """Not above the plot: what is slower is at its edge."""
        return max(0.0, 1 - (seconds - self.least) / (self.most - self.least))

    def shows(self, spot: Spot) -> bool:
        return spot.seconds <= self.most

    def place(self, spot: Spot) -> str:
        return f"left:{_percent(self.x(spot.peak))};top:{_percent(self.y(spot.seconds))}"


def frontier_plot(curve: Curve) -> str:
    frame = _Frame(curve)
    parts = [*_overhead_lines(curve, frame), _frontier_shapes(curve, frame)]
    parts += _uprights(curve, frame)
    for spot in filter(frame.shows, curve.line):
        parts.append(_button(spot, frame.place(spot), "point", "", "line"))
    for index, spot in enumerate(curve.baselines):
        mark = _MARKS[index % len(_MARKS)]
        parts.append(_button(spot, frame.place(spot), "base", mark, spot.name))
    if curve.chosen:
        parts.append(_button(curve.chosen, frame.place(curve.chosen), "point ringed", "", "chosen"))
    return (
        f'<div class="chart"><div class="plot">{"".join(parts)}</div>{_peak_ticks(frame)}'
        '<div class="axis-name">peak of a step</div></div>'
    )


def frontier_rows(curve: Curve) -> Iterator[tuple[str, str, Spot]]:
    """(mark, key, spot) of everything that is drawn, for the table beside the plot."""
    if curve.chosen:
        yield "\u25ce", "chosen", curve.chosen
    if curve.line:
        yield "\u25cf", "smallest", replace(curve.line[0], name="smallest plan found")
    for index, spot in enumerate(curve.baselines):
        yield _MARKS[index % len(_MARKS)], spot.name, spot


def _button(spot: Spot, place: str, style: str, mark: str, key: str) -> str:
    words = f"peak {format_bytes(spot.peak)}, step time {format_seconds(spot.seconds)}"
    title = escape(f"{spot.name or 'a plan'}: {words}")
    return f'<button class="spot {style}" data-spot="{escape(key)}" style="{place}" title="{title}" aria-label="{title}">{mark}</button>'


def _frontier_shapes(curve: Curve, frame: _Frame) -> str:
    if not curve.line:
        return ""
    points = [(frame.x(s.peak) * COLUMNS, frame.y(s.seconds) * _HIGH) for s in curve.line]
    (x0, y0), *others = points
    steps = "".join(f"H{x:.0f}V{y:.0f}" for x, y in others)
    hatch = (
        '<defs><pattern id="hatch" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45) scale(.6 1.8)">'
        '<path class="hatch" d="M0 0V9"/></pattern></defs>'
    )
    below = f'<rect class="below" x="0" y="0" width="{x0:.0f}" height="{_HIGH}"><title>no plan found</title></rect>'
    return _svg(f'{hatch}{below}<path class="line" d="M{x0:.0f} 0V{y0:.0f}{steps}H{COLUMNS}"/>')


def _overhead_lines(curve: Curve, frame: _Frame) -> Iterator[str]:
    least = curve.seconds or SHORTEST  # of steps without prices
    for tick in ticks(max(0.01, 100 * (frame.most / least - 1)), 5):
        seconds = least * (1 + tick / 100)
        if frame.least <= seconds <= frame.most:
            words = format_percent(tick / 100) if tick else format_seconds(least)
            yield f'<div class="grid" style="top:{_percent(frame.y(seconds))}"><span>{words}</span></div>'


def _uprights(curve: Curve, frame: _Frame) -> Iterator[str]:
    for size in DEVICES:
        if frame.low < size < frame.high:
            yield f'<div class="up" style="left:{_percent(frame.x(size))}"><span>{format_bytes(size)}</span></div>'
    if curve.budget:
        words = f"budget {format_bytes(curve.budget)}"
        yield f'<div class="up limit-x" style="left:{_percent(frame.x(curve.budget))}"><span>{words}</span></div>'


def _peak_ticks(frame: _Frame) -> str:
    unit = next((u for u in (2**30, 2**20, 2**10) if frame.high >= 0.8 * u), 1)
    name = {2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}.get(unit, "B")
    step = [t * unit for t in ticks((frame.high - frame.low) / unit, 5)][1]
    marks = [i * step for i in range(int(frame.high / step) + 1)]
    spans = (
        f'<span style="left:{_percent(frame.x(m))}">{m / unit:g} {name}</span>'
        for m in marks
        if frame.low <= m and 0.03 < frame.x(m) < 0.97
    )
    return f'<div class="ticks">{"".join(spans)}</div>'
