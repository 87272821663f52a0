"""How does a report read in a terminal? The verdict, the step as a line of bars, a few points of the frontier, and who holds the peak.

Goes in: a `Picture` and the words that its object says of itself. Comes out: lines of (words, style): printed in colour on a terminal,
joined to plain text elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lowtide.draw.sparkline import sparkline
from lowtide.report.curve import Curve, Spot
from lowtide.report.kinds import colour
from lowtide.report.picture import Holder, Picture
from lowtide.report.sampling import Sampled
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Line", "lines_of", "plain"]

Line = list[tuple[str, str]]
"""Words and their style, as rich names it."""

_WIDTH = 60
_ROWS = 8
_POINTS = 5
_KINDS = 3
"""Named beside each layer."""
_WHOLE = "(the model itself)"
_TONES = {"good": "bold green", "bad": "bold red", "care": "bold yellow"}


def plain(lines: Iterable[Line]) -> str:
    return "\n".join("".join(words for words, _ in line).rstrip() for line in lines)


def lines_of(picture: Picture, said: str) -> list[Line]:
    """`said` is how the plan, profile or graph prints itself: its first word is the verdict."""
    first, *others = said.splitlines()
    word, colon, rest = first.partition(":")
    lines: list[Line] = [[(word, _TONES.get(picture.verdict.tone, "bold")), (colon + rest, "")]]
    lines += [[(line, "")] for line in others]
    if picture.kind != "profile":  # which shows its own bars and layers
        lines += [[], *_timeline(picture)]
    if picture.curve is not None:
        lines += [[], *_frontier(picture.curve)]
    if picture.kind != "profile":
        lines += [[], *_holders(picture)]
    return lines


def _timeline(picture: Picture) -> Iterator[Line]:
    top = max(step.step.peak for step in picture.steps)
    wide = max(len(step.step.name) for step in picture.steps)
    for sampled in reversed(picture.steps):
        width = max(1, round(_WIDTH * sampled.step.seconds / picture.span)) if picture.span else 1
        bars = sparkline(_points(sampled), width=width, top=top)
        style = "bold" if sampled is picture.steps[0] else "dim"
        yield [(f"{sampled.step.name:<{wide}}  ", ""), (f"{bars:<{_WIDTH}}", style), (_about(sampled), "dim")]  # fmt: skip
    yield [(" " * (wide + 2) + _phases(picture.steps[0], picture.span), "dim")]


def _points(sampled: Sampled) -> list[tuple[float, int]]:
    points = [(i.seconds, i.total) for i in sampled.instants]
    return [*points, (sampled.step.seconds, points[-1][1])] if points else []


def _about(sampled: Sampled) -> str:
    step = sampled.step
    time = f" in {format_seconds(step.seconds)}" if step.timed else ""
    return f"  {format_bytes(step.peak)}{time}"


def _phases(sampled: Sampled, span: float) -> str:
    line = ""
    for name, start in sampled.step.phases:
        place = int(_WIDTH * start / span) if span else 0
        line = f"{line:<{place}}" + f"|{name} "
    return line


def _frontier(curve: Curve) -> Iterator[Line]:
    yield [("what less memory costs", "bold")]
    for spot in _some(curve.line):
        yield [(_spot(spot, curve.seconds), "")]
    for spot in curve.baselines:
        yield [(f"{_spot(spot, curve.seconds)}  {spot.name}", "dim")]


def _some(line: Sequence[Spot]) -> list[Spot]:
    """The ends and what is evenly between them."""
    if len(line) <= _POINTS:
        return list(line)
    return [line[round(i * (len(line) - 1) / (_POINTS - 1))] for i in range(_POINTS)]


def _spot(spot: Spot, least: float) -> str:
    extra = format_percent(spot.seconds / least - 1) if least else ""
    return f"{format_bytes(spot.peak):>10}  {format_seconds(spot.seconds):>8}  {extra:>7}"


def _holders(picture: Picture) -> Iterator[Line]:
    rows, sampled = picture.holders[0], picture.steps[0]
    shown = rows[:_ROWS]
    whole = sum(row.bytes for row in rows) or 1
    wide = max([10, *(len(row.layer or _WHOLE) for row in shown)])
    yield [(f"who holds the peak of {format_bytes(sampled.step.peak)}", "bold")]
    for row in shown:
        share = f"{100 * row.bytes / whole:.0f}%"
        name = row.layer or _WHOLE
        yield [(f"{name:<{wide}}  {format_bytes(row.bytes):>9} {share:>4}  ", ""), *_kinds(row)]
    if len(rows) > _ROWS:
        rest = sum(row.bytes for row in rows[_ROWS:])
        yield [(f"{f'{len(rows) - _ROWS} more':<{wide}}  {format_bytes(rest):>9}", "dim")]


def _kinds(row: Holder) -> Iterator[tuple[str, str]]:
    largest = sorted(row.kinds.items(), key=lambda pair: -pair[1])[:_KINDS]
    for place, (kind, size) in enumerate(largest):
        yield (", " if place else ""), ""
        yield "\u25aa", colour(kind)  # words in these colours would not read on every terminal
        yield f" {kind} {format_bytes(size)}", ""
