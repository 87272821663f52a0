"""How is a picture written as a page? One self-contained HTML file: no network, no library, light and dark, wide and narrow.

Goes in: a `Picture`. Comes out: HTML with its style, its script and its data. All words from files are escaped, and a policy in the page
forbids the browser to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

from lowtide.report.changes import WAYS, Change, Detail, Tally
from lowtide.report.kinds import COLOURS, colour
from lowtide.report.picture import COLUMNS, Holder, Picture
from lowtide.report.plots import frontier_plot, frontier_rows, timeline_plot
from lowtide.report.sampling import Sampled
from lowtide.report.words import Fact, Verdict
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["MARK", "page"]

MARK = "<!-- a Lowtide report -->"
"""Near the start of every page: it was written by this module, and may be again."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_MOST = 20
"""Rows of a table before the rest is asked for."""
_MEMBERS = 40
"""Folded layers that are listed one by one."""
_ALL = 300
"""Rows of a table at all."""
_INNER = 600
"""Rows of a table that are seen when others are opened: a page stays small whatever the model."""
_SMALL = 0.004
"""Kinds below this share of the peak have no column of their own."""


def page(picture: Picture) -> str:
    title = escape(picture.title)
    sections = (
        _timeline(picture),
        _frontier(picture),
        _peak_tables(picture),
        _changes(picture),
        _trust(picture),
    )
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        f'<header class="top"><h1>{title}</h1><span class="quiet">memory of one training step</span></header>\n'
        f"{_strip(picture.verdict)}\n{''.join(sections)}\n"
        "<footer>Written by Lowtide. Numbers with a ~ are predicted, those without are measured.</footer>\n"
        f'<script type="application/json" id="data">{_data(picture)}</script>\n'
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("lowtide.report").joinpath(name).read_text(encoding="utf-8")


def _strip(verdict: Verdict) -> str:
    cells = "".join(
        f'<div><div class="label">{escape(c.label)}</div><div class="value {c.tone}">{_unbroken(c.value)}</div>'
        f'<div class="note">{escape(c.note)}</div></div>'
        for c in verdict.cells
    )
    return (
        f'<div class="verdict"><div class="{verdict.tone}">'
        f'<div class="answer">{escape(verdict.headline)}</div><div class="note">{escape(verdict.note)}</div></div>{cells}</div>'
    )


def _unbroken(words: str) -> str:
    """Breaks before the arrow only, never within a size."""
    first, arrow, last = escape(words).partition(" \u2192 ")
    parts = (first, f"\u2192 {last}") if arrow else (first,)
    return " ".join(f'<span class="nobr">{part}</span>' for part in parts)


def _section(name: str, title: str, words: str, inside: str, side: str = "") -> str:
    return f'<section id="{name}"><div class="head"><h2>{title}</h2>{side}<p>{words}</p></div>{inside}</section>\n'


def _switch(picture: Picture) -> str:
    if len(picture.steps) < 2:
        return ""
    buttons = "".join(
        f'<button data-show="{i}" aria-pressed="{str(not i).lower()}">{escape(s.step.name)}</button>'
        for i, s in enumerate(picture.steps)
    )
    return f'<div class="switch" role="group" aria-label="which step is shown">{buttons}</div>'


def _timeline(picture: Picture) -> str:
    words = "What is allocated from the start of the step to its end. Point at a moment, or tap it, to see what is alive; a click holds it."
    kinds = [f'<li><i class="dot" style="--k:{colour(k)}"></i>{escape(k)}</li>' for k in reversed(picture.kinds)]  # fmt: skip
    if len(picture.steps) > 1:
        kinds += [
            f'<li data-not-step="{i}"{"" if i else " hidden"}><i class="dot ring"></i>{escape(s.step.name)}</li>'
            for i, s in enumerate(picture.steps)
        ]
    if picture.observed:
        kinds.append('<li><i class="dot thin"></i>measured, stretched to the predicted times</li>')
    if picture.budget is not None:
        kinds.append('<li><i class="dot dash"></i>budget</li>')
    inside = (
        f'<ul class="legend">{"".join(kinds)}</ul><div class="timeline">{timeline_plot(picture)}'
        '<div class="readout" id="readout" aria-live="polite"></div></div>'
    )
    return _section("timeline", "Memory over the step", words, inside, _switch(picture))


def _frontier(picture: Picture) -> str:
    if picture.curve is None:
        how = "<p>What other budgets would cost in time: <code>lowtide report FILE --frontier</code> adds it here.</p>"
        return f'<section id="frontier" class="quiet">{how}</section>\n'
    curve = picture.curve
    words = "What less memory costs in time: each point is a plan. The hatched side is below the smallest plan found."
    least = curve.seconds
    rows = "".join(
        f'<tr data-line="{escape(key)}"><td>{mark} {escape(spot.name)}</td><td>{format_bytes(spot.peak)}</td>'
        f"<td>{format_seconds(spot.seconds)}</td><td>{format_percent(spot.seconds / least - 1) if least else ''}</td></tr>"
        for mark, key, spot in frontier_rows(curve)
    )
    table = f'<table><thead><tr><th></th><th>peak</th><th>step time</th><th></th></tr></thead><tbody>{rows}</tbody></table>'  # fmt: skip
    inside = f'<div class="frontier">{frontier_plot(curve)}<div>{table}<p class="quiet" id="told" aria-live="polite"></p></div></div>'
    return _section("frontier", "Memory against time", words, inside)


def _peak_tables(picture: Picture) -> str:
    words = "Layers and kinds of data at the highest moment. Repeated layers are one row; a click opens it, a click on a heading sorts."
    inside = "".join(
        f'<div data-step="{i}"{" hidden" if i else ""}>{_peak_table(i, sampled, holders)}</div>'
        for i, (sampled, holders) in enumerate(zip(picture.steps, picture.holders))
    )
    return _section("holders", "Who holds the peak", words, inside, _switch(picture))


def _peak_table(index: int, sampled: Sampled, holders: Sequence[Holder]) -> str:
    whole = sum(h.bytes for h in holders)
    sums = {kind: sum(h.kinds.get(kind, 0) for h in holders) for kind in sampled.kinds}
    kinds = [kind for kind in sampled.kinds if sums[kind] > _SMALL * whole]
    most = max((size for h in holders for size in h.kinds.values()), default=1)
    heads = "".join(
        f'<th data-sort><i class="dot" style="--k:{colour(k)}"></i>{escape(k)}</th>' for k in kinds
    )
    small = sum(sums.values()) - sum(sums[k] for k in kinds)
    heads += "<th data-sort>rest</th>" if small else ""
    everything = Holder("all", sums)
    rows = []
    left = _INNER
    for holder in holders[:_ALL]:
        members = holder.members[: min(_MEMBERS, left)]
        left -= len(members)
        rows.append(_holder_row(holder, kinds, bool(small), most, whole))
        rows += [_holder_row(m, kinds, bool(small), most, whole, inner=True) for m in members]
        if len(holder.members) > len(members):
            more = len(holder.members) - len(members)
            rows.append(f'<tr class="inner" hidden><td>and {more} more</td></tr>')
    table = (
        f'<table class="sorts" id="peak-{index}" data-most="{_MOST}"><thead><tr><th data-sort="up">layer</th>'
        f'<th data-sort aria-sort="descending">total</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
        f"<tfoot>{_holder_row(everything, kinds, bool(small), 0, 0)}</tfoot></table>"
    )
    return _scroll(table, f"peak-{index}", len(holders[:_ALL])) + _left_out(holders)


def _left_out(rows: Sequence[object]) -> str:
    if len(rows) <= _ALL:
        return ""
    return f'<p class="quiet">{len(rows) - _ALL} more rows are not listed.</p>'


def _scroll(table: str, name: str, rows: int) -> str:
    more = ""
    if rows > _MOST:
        more = f'<button class="more" data-all-of="{name}">show all {rows} rows</button>'
    return f'<div class="scroll">{table}</div>{more}'


def _holder_row(
    holder: Holder, kinds: Sequence[str], rest: bool, most: int, whole: int, inner: bool = False
) -> str:
    share = 100 * holder.bytes / whole if whole else 0.0
    bar = (
        ""
        if inner or not whole
        else f'<span class="share"><i style="width:{share:.1f}%"></i></span>'
    )
    cells = [
        _name_cell(holder.layer, opens=bool(holder.members), inner=inner),
        f'<td data-v="{holder.bytes}">{bar}{_size(holder.bytes)}</td>',
    ]
    for kind in kinds:
        size = holder.kinds.get(kind, 0)
        heat = (
            ""
            if inner or not (size and most)
            else f' style="background:{_heat(kind, size / most)}"'
        )
        cells.append(f'<td data-v="{size}"{heat}>{_size(size)}</td>' if size else "<td></td>")
    if rest:
        small = holder.bytes - sum(holder.kinds.get(kind, 0) for kind in kinds)
        cells.append(f'<td data-v="{small}">{_size(small)}</td>' if small else "<td></td>")
    return f"<tr{' class=inner hidden' if inner else ''}>{''.join(cells)}</tr>"


def _name_cell(layer: str, *, opens: bool, inner: bool = False) -> str:
    name = f"<code>{escape(layer)}</code>" if layer else "(the model itself)"
    if opens:
        return f'<td><button class="open" aria-expanded="false">{name}</button></td>'
    return f"<td>{name}</td>" if inner else f'<td><span class="shut">{name}</span></td>'


def _heat(kind: str, share: float) -> str:
    return f"{colour(kind)}{round(0x14 + 0x80 * share):02x}"


def _size(size: int) -> str:
    return format_bytes(size) if size else ""


def _changes(picture: Picture) -> str:
    if not picture.changes:
        return ""
    ways = [way for way in WAYS if any(way in change.ways for change in picture.changes)]
    heads = "".join(f"<th data-sort>{escape(way)}</th>" for way in ways)
    rows = "".join(line for change in picture.changes[:_ALL] for line in _change_rows(change, ways))
    table = (
        f'<table class="sorts" id="changed" data-most="{_MOST}"><thead><tr><th data-sort="up">layer</th>'
        f'<th data-sort aria-sort="descending">time added</th>{heads}</tr></thead><tbody>{rows}</tbody>'
        f"<tfoot>{next(_change_rows(_sum(picture.changes), ways))}</tfoot></table>"
    )
    words = "How many tensors or ops, and their bytes: what is kept for backward, and how the rest is got back. A click on a row tells why."
    inside = _scroll(table, "changed", len(picture.changes[:_ALL])) + _left_out(picture.changes)
    return _section("changes", "What was done to each layer", words, inside)


def _sum(found: Sequence[Change]) -> Change:
    ways = {
        way: Tally(sum(t.count for t in tallies), sum(t.bytes for t in tallies))
        for way in WAYS
        if (tallies := [c.ways[way] for c in found if way in c.ways])
    }
    return Change("all", ways, sum(c.seconds for c in found), ())


def _change_rows(change: Change, ways: Sequence[str]) -> Iterator[str]:
    cells = [
        _name_cell(change.layer, opens=bool(change.details)),
        f'<td data-v="{change.seconds:.9f}">{_added(change.seconds)}</td>',
    ]
    for way in ways:
        tally = change.ways.get(way)
        words = "" if tally is None else f"{tally.count}"
        if tally is not None and tally.bytes:
            words += f' <span class="quiet">\u00b7</span> {format_bytes(tally.bytes)}'
        order = 0 if tally is None else tally.bytes or tally.count
        cells.append(f'<td data-v="{order}">{words}</td>')
    yield f"<tr>{''.join(cells)}</tr>"
    for detail in change.details:
        yield _detail_row(detail, len(ways))


def _detail_row(detail: Detail, ways: int) -> str:
    size = f", {format_bytes(detail.bytes)}" if detail.bytes else ""
    return (
        f'<tr class="inner" hidden><td><code>{escape(detail.op)}</code></td>'
        f'<td>{_added(detail.seconds)}</td><td class="words" colspan="{ways}">'
        f"<b>{escape(detail.way)}</b> {detail.count}\u00d7{size}: {escape(detail.reason)}</td></tr>"
    )


def _added(seconds: float) -> str:
    if abs(seconds) < 5e-7:
        return ""
    sign = "+" if seconds > 0 else "\u2212"
    return f"{sign}{format_seconds(abs(seconds))}"


def _trust(picture: Picture) -> str:
    cards = "".join(
        f"<div><h3>{escape(title)}</h3><dl>{_facts(facts)}</dl></div>"
        for title, facts in picture.facts
    )
    words = "Predicted numbers beside measured ones, and where everything came from."
    return _section("trust", "What this rests on", words, f'<div class="cards">{cards}</div>')


def _facts(facts: Iterable[Fact]) -> str:
    return "".join(
        f'<dt>{escape(f.name)}</dt><dd class="{f.tone}">{escape(f.value)}</dd>' for f in facts
    )


def _data(picture: Picture) -> str:
    """The numbers behind the timeline, words by their index, as JSON that cannot end the script it is in."""
    layers, ops, kinds = _Index(), _Index(), _Index(COLOURS)
    steps = [_step_data(sampled, layers, ops, kinds) for sampled in picture.steps]
    content = {
        "columns": COLUMNS,
        "kinds": list(kinds.found),
        "colours": [colour(str(kind)) for kind in kinds.found],
        "layers": list(layers.found),
        "ops": list(ops.found),
        "steps": steps,
    }
    text = json.dumps(content, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class _Index:
    """Things by the order they were first asked for."""

    def __init__(self, first: Iterable[object] = ()) -> None:
        self.found: dict[object, int] = {thing: i for i, thing in enumerate(first)}

    def of(self, thing: object) -> int:
        return self.found.setdefault(thing, len(self.found))


def _step_data(sampled: Sampled, layers: _Index, ops: _Index, kinds: _Index) -> dict[str, object]:
    instants = []
    for instant in sampled.instants:
        running = instant.running
        op = ops.of((running.op, running.layer, running.source)) if running else -1
        held = [(layers.of(h.layer), kinds.of(h.kind), h.bytes) for h in instant.holdings]
        flat = [number for row in held for number in row]
        instants.append((round(instant.seconds, 7), instant.total, op, instant.kinds, flat))
    return {
        "name": sampled.step.name,
        "timed": sampled.step.timed,
        "phases": [(name, round(start, 7)) for name, start in sampled.step.phases],
        "kinds": [kinds.of(kind) for kind in sampled.kinds],
        "columns": sampled.columns,
        "top": sampled.top,
        "at": [instant.column for instant in sampled.instants],
        "instants": instants,
    }
