"""What does a report say to a program? The picture as plain numbers and words, for `--json`."""

from __future__ import annotations

from dataclasses import asdict

from lowtide.report.changes import Change
from lowtide.report.picture import Holder, Picture
from lowtide.report.sampling import Sampled

__all__ = ["as_data"]


def as_data(picture: Picture) -> dict[str, object]:
    return {
        "kind": picture.kind,
        "title": picture.title,
        "verdict": asdict(picture.verdict),
        "budget": picture.budget,
        "steps": [_step(s, h) for s, h in zip(picture.steps, picture.holders)],
        "measured": [list(point) for point in picture.observed],
        "frontier": asdict(picture.curve) if picture.curve is not None else None,
        "changes": [_change(change) for change in picture.changes],
        "facts": {title: {f.name: f.value for f in facts} for title, facts in picture.facts},
    }


def _step(sampled: Sampled, holders: tuple[Holder, ...]) -> dict[str, object]:
    step = sampled.step
    peak = sampled.instants[sampled.top] if sampled.instants else None
    return {
        "name": step.name,
        "seconds": step.seconds,
        "peak": step.peak,
        "peak_seconds": peak.seconds if peak else None,
        "phases": [list(phase) for phase in step.phases],
        "kinds": list(sampled.kinds),
        "timeline": [[i.seconds, *i.kinds] for i in sampled.instants],
        "holders": [_holder(holder) for holder in holders],
    }


def _holder(holder: Holder) -> dict[str, object]:
    members = [_holder(member) for member in holder.members]
    return {"layer": holder.layer, "bytes": holder.bytes, "kinds": dict(holder.kinds)} | (
        {"layers": members} if members else {}
    )


def _change(change: Change) -> dict[str, object]:
    return {
        "layer": change.layer,
        "seconds": change.seconds,
        "ways": {way: asdict(tally) for way, tally in change.ways.items()},
        "ops": [asdict(detail) for detail in change.details],
    }
