"""How is a profile said in ten lines? The peak and its shares, the step as a line of bars, and the layers that hold the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lowtide.draw.sparkline import sparkline
from lowtide.plan.folding import fold_layers
from lowtide.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.plan.profile import Profile

__all__ = ["kinds_at_peak", "profile_text"]

_WIDTH = 60
_LAYERS = 8
_KINDS = 2
"""How many kinds are named beside a layer."""


def profile_text(profile: Profile) -> str:
    return "\n".join(
        [
            *_head(profile),
            _shares(profile),
            *_picture(profile),
            *_layers(profile),
            *_growth(profile),
            *_planning(profile),
        ]
    )


def kinds_at_peak(profile: Profile) -> list[tuple[str, int]]:
    """Largest first."""
    found: Counter[str] = Counter()
    for row in profile.at_peak:
        found[row.kind] += row.bytes
    return found.most_common()


def _head(profile: Profile) -> Iterator[str]:
    about = "~" if profile.estimated else ""
    phase = profile.phase_at(profile.peak_seconds)
    where = f" in {phase}" if phase else ""
    of = f"at {format_seconds(profile.peak_seconds)} of {format_seconds(profile.seconds)}"
    if profile.estimated:
        yield "estimated, no device"
    yield f"{profile.model}: peak {about}{format_bytes(profile.peak)}{where}, {of}"


def _shares(profile: Profile) -> str:
    parts = [
        f"{kind} {_share(size, profile.peak)}"
        for kind, size in kinds_at_peak(profile)
        if 1000 * size >= profile.peak
    ]
    return "  ".join(parts)


def _share(size: int, whole: int) -> str:
    percent = 100 * size / whole
    return f"{percent:.0f}%" if percent >= 1 else f"{percent:.1f}%"


def _picture(profile: Profile) -> Iterator[str]:
    if not profile.points:
        return
    yield sparkline(profile.points, width=_WIDTH)
    line = [" "] * _WIDTH
    free = 0
    for name, start in profile.phases:
        place = max(free, min(_WIDTH - 1, int(_WIDTH * start / (profile.seconds or 1.0))))
        words = f"|{name}"
        line[place : place + len(words)] = words
        free = place + len(words) + 1
    yield "".join(line).rstrip()


def _layers(profile: Profile) -> Iterator[str]:
    kinds: dict[str, Counter[str]] = {}
    for held in profile.at_peak:
        kinds.setdefault(held.layer, Counter())[held.kind] += held.bytes
    rows = fold_layers((layer, sum(found.values())) for layer, found in kinds.items())
    outside = "(no layer)" if " + " in profile.model else f"({profile.model} itself)"
    wide = max((len(row.name or outside) for row in rows[:_LAYERS]), default=0)
    for row in rows[:_LAYERS]:
        parts: Counter[str] = Counter()
        for layer in row.layers:
            parts.update(kinds[layer])
        named = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in parts.most_common(_KINDS))
        name = row.name or outside
        yield f"{name:<{wide}}  {format_bytes(row.bytes):>9} {_share(row.bytes, profile.peak):>5}  {named}"
    if len(rows) > _LAYERS:
        rest = sum(row.bytes for row in rows[_LAYERS:])
        yield f"{len(rows) - _LAYERS} more layers  {format_bytes(rest)}"


def _growth(profile: Profile) -> Iterator[str]:
    if len(profile.peaks) > 1:
        peaks = [format_bytes(size) for size in profile.peaks]
        grown = profile.peaks[-1] / profile.peaks[0] - 1 if profile.peaks[0] else 0.0
        yield f"peaks of {len(peaks)} steps: {', '.join(peaks)} ({format_percent(grown)})"


def _planning(profile: Profile) -> Iterator[str]:
    why = profile.environment.get("not captured")
    if why:
        yield f"cannot be planned: {why}"
