"""Which planner gets how low, and at what price? Small pictures of memory against time, one panel for each model, one line for each planner.

Goes in: for each panel the points that each planner reached, as shares of the unplanned step. Comes out: one self-contained SVG in the
colours and manners of `draw/charts.py`. Lines differ in colour, in dashes and in marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lowtide.draw.charts import STYLE, ticks

__all__ = ["Panel", "frontiers_svg"]

_ACROSS, _WIDE, _HIGH = 4, 280, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 46, 40
_HEAD = 84
_LOOKS = (
    ("#0072b2", ""), ("#d55e00", "6 3"), ("#009e73", "2 3"), ("#cc79a7", "8 3 2 3"), ("#e69f00", "4 2"),
    ("#56b4e9", "1 2"), ("#8c6d31", "10 4"), ("#7f7f7f", "3 6"), ("#7b4fc9", "5 2 1 2"), ("#a0a000", "9 2"),
)  # fmt: skip
_LEAST = 0.05
"""Overhead that the axis shows at least."""


@dataclass(frozen=True)
class Panel:
    title: str
    words: str
    """What 100% stands for."""
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """For each planner (peak, overhead), as shares of the unplanned peak and seconds."""


def frontiers_svg(panels: Sequence[Panel], title: str = "What plans take: memory and time") -> str:
    across = max(1, min(_ACROSS, len(panels)))
    width = across * _WIDE + 20
    height = _HEAD + -(-len(panels) // across) * _HIGH + 10
    names = list(dict.fromkeys(n for panel in panels for n, line in panel.lines.items() if line))
    parts = [
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="20" y="30">{escape(title)}</text>',
        *_legend(names, width),
    ]
    for index, panel in enumerate(panels):
        x, y = 10 + index % across * _WIDE, _HEAD + index // across * _HIGH
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel, names), "</g>"]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n.small {{ font-size: 11px }}\n.name {{ font-weight: 600 }}\n.line {{ fill: none; stroke-width: 1.8 }}\n</style>",
            *parts,
            "</svg>\n",
        ]
    )


def _look(names: Sequence[str], name: str) -> tuple[str, str]:
    return _LOOKS[names.index(name) % len(_LOOKS)]


def _legend(names: Sequence[str], width: int) -> Iterator[str]:
    x, y = 20.0, 54
    for index, name in enumerate(names):
        colour, dashes = _look(names, name)
        if x + 60 + 7 * len(name) > width:
            x, y = 20.0, y + 18
        yield f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{x:.0f} {y}h26"/>'
        yield _mark(index, x + 13, y, colour)
        yield f'<text class="small" x="{x + 32:.0f}" y="{y + 4}">{escape(name)}</text>'
        x += 52 + 7 * len(name)


def _panel(panel: Panel, names: Sequence[str]) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    most = 1.08 * max([_LEAST, *(overhead for _, overhead in points)])
    columns, rows = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BOTTOM

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + columns * point[0], _TOP + rows * (1 - max(0.0, point[1]) / most)

    yield f'<text class="name" x="{_LEFT}" y="18">{escape(panel.title)}</text>'
    yield f'<text class="quiet small" x="{_LEFT}" y="34">100% is {escape(panel.words)}</text>'
    yield from _axes(most, columns, rows)
    for name, line in panel.lines.items():
        if not line:
            continue
        colour, dashes = _look(names, name)
        drawn = [place(point) for point in sorted(set(line))]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        yield f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="M{path}"><title>{escape(name)}</title></path>'
        yield from (_mark(names.index(name), x, y, colour) for x, y in drawn)


def _axes(most: float, columns: int, rows: int) -> Iterator[str]:
    floor = _TOP + rows
    for tick in ticks(100 * most, 4):
        y = f"{floor - rows * tick / (100 * most):.1f}"
        yield f'<path class="{"grid" if tick else "axis"}" d="M{_LEFT} {y}h{columns}"/>'
        yield f'<text class="quiet small" x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{_percent(tick)}</text>'
    for share in (0, 20, 40, 60, 80, 100):
        x = f"{_LEFT + columns * share / 100:.1f}"
        yield f'<path class="axis" d="M{x} {floor}v4"/>'
        yield f'<text class="quiet small" x="{x}" y="{floor + 17}" text-anchor="middle">{share}</text>'
    yield f'<text class="quiet small" x="{_LEFT + columns / 2:.0f}" y="{floor + 32}" text-anchor="middle">peak (% of the unplanned), extra time</text>'


def _percent(extra: float) -> str:
    return f"+{extra:g}%" if extra else "0"


def _mark(index: int, x: float, y: float, colour: str) -> str:
    """Circle, square, triangle, diamond: in turn, so that lines are told apart without colour."""
    shapes = (
        "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", "m-3 -3h6v6h-6z", "m0 -4l4 7h-8z", "m0 -4l4 4l-4 4l-4 -4z",
    )  # fmt: skip
    return f'<path fill="{colour}" d="M{x:.1f} {y:.1f}{shapes[index % len(shapes)]}"/>'
