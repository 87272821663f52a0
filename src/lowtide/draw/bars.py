"""Where do the bytes of a peak lie, and how fast is it? Stacked bars, one group for each model.

Goes in: for each bar its parts in bytes and a speed. Comes out: one self-contained SVG in the colours and manners of `draw/charts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lowtide.draw.charts import STYLE
from lowtide.units import format_bytes

__all__ = ["Bar", "bars_svg"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
_LEFT, _LONG, _HIGH, _GAP, _WIDTH = 200, 420, 20, 8, 800


@dataclass(frozen=True)
class Bar:
    name: str
    parts: Mapping[str, int]
    per_second: float | None


def bars_svg(groups: Mapping[str, Sequence[Bar]], title: str) -> str:
    names = list(dict.fromkeys(n for bars in groups.values() for b in bars for n in b.parts))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    parts = [f'<text class="title" x="20" y="30">{escape(title)}</text>', *_legend(colours)]
    y = 84
    for model, bars in groups.items():
        parts.append(f'<text class="name" x="20" y="{y}">{escape(model)}</text>')
        y += 14
        most = max((sum(b.parts.values()) for b in bars), default=1) or 1
        for bar in bars:
            parts += _bar(bar, y, most, colours)
            y += _HIGH + _GAP
        y += 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{STYLE}\n.small {{ font-size: 11px }}\n.name {{ font-weight: 600 }}\n</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{y - 1}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _legend(colours: Mapping[str, str]) -> Iterator[str]:
    x = 20.0
    for name, colour in colours.items():
        yield f'<rect fill="{colour}" x="{x:.0f}" y="46" width="12" height="12"/>'
        yield f'<text class="small" x="{x + 17:.0f}" y="56">{escape(name)}</text>'
        x += 32 + 6.2 * len(name)


def _bar(bar: Bar, y: int, most: int, colours: Mapping[str, str]) -> Iterator[str]:
    yield f'<text class="small" x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(bar.name)}</text>'
    x = float(_LEFT)
    for name, size in bar.parts.items():
        wide = _LONG * size / most
        yield f'<rect fill="{colours[name]}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_HIGH}"><title>{escape(name)} {format_bytes(size)}</title></rect>'
        x += wide
    speed = "" if bar.per_second is None else f", {bar.per_second:.1f}/s"
    words = f"{format_bytes(sum(bar.parts.values()))}{speed}"
    yield f'<text class="quiet small" x="{x + 7:.0f}" y="{y + 14}">{words}</text>'
