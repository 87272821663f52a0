"""How good are our plans of the MONeT paper's instances? Plans one, or all, and compares with what was published.

The published schedules took Gurobi up to 24 hours on 12 threads; `results.json` beside the instances has them, Checkmate's
included, with the solver's own bounds.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.bench.monet import Instance, read_instance
from lowtide.bench.monet_schedule import as_schedule
from lowtide.errors import FileFormatError, LowtideError
from lowtide.solve.play import Answers
from lowtide.solve.search import Effort, Pace, Search

__all__ = ["FULL", "Row", "plan_all", "plan_one", "table"]

FULL = "inplace_conv_multiway_newnode"
"""The profile with all of MONeT's choices."""
MODELS = ("resnet50", "googlenet", "unet", "vgg16", "mobilenet_v2")
_GB = 2**30
_START = 0.2
"""Share of the time for finding any plan within the budget, where the greedy start does not."""


@dataclass(frozen=True)
class Row:
    model: str
    profile: str
    budget_gb: float
    ms: float
    peak_gb: float
    seconds: float
    """Of planning: reading included, compiling, which happens once on a machine, not."""
    schedule: dict[str, Any]
    published_ms: float | None = None
    bound_ms: float | None = None
    """What Gurobi had proved when it stopped."""
    checkmate_ms: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.ms / self.published_ms if self.published_ms else None


def plan_one(folder: Path, model: str, profile: str, budget_gb: float, seconds: float) -> Row:
    started = time.perf_counter()
    instance = read_instance(folder, model, profile)
    limit = int(budget_gb * _GB)
    search = instance.search(limit)
    compiling = time.perf_counter()
    search.warm_up()
    started += time.perf_counter() - compiling
    best = _plan(search, limit, started, seconds)
    if best.peak > limit:
        raise LowtideError(
            f"no schedule of {model} within {budget_gb} GB was found in {seconds:g} s; the smallest has {best.peak / _GB:.2f} GB"
        )
    schedule = as_schedule(instance, search, best, budget_gb)
    took = time.perf_counter() - started
    return Row(
        model, profile, budget_gb, best.seconds * 1e3, best.peak / _GB, took, schedule,
        **_published(folder, instance, budget_gb),
    )  # fmt: skip


def _plan(search: Search, limit: int, started: float, seconds: float) -> Answers:
    start = search.descend(limit)
    if start is None or start.peak > limit:
        start = search.floor(effort=Effort(_START * seconds))
    if start.peak > limit:
        return start
    left = Effort(started + seconds - time.perf_counter())
    return search.improve(start, limit, effort=left, pace=_pace(seconds, len(search.problem.order)))


def _pace(seconds: float, positions: int) -> Pace:
    """Two long rounds: these instances are small, and all the time is there to be used. One thread starts at about half the time
    of an op, for the many cheap ops of a long network; the next one hotter, for the few dear ops of a short one."""
    return Pace(seconds / 2.1, 10**7, (0.6 / positions, 0.3 / positions), math.inf, spread=6.0)


def _published(folder: Path, instance: Instance, budget_gb: float) -> dict[str, float | None]:
    try:
        results = json.loads((folder / "results.json").read_text())["results"]
    except (OSError, ValueError, KeyError) as error:
        raise FileFormatError(
            f"no published results in {folder / 'results.json'}: {error}"
        ) from None
    here = [r for r in results if r["model"] == instance.model and r["budget_gb"] == budget_gb]
    same = [r for r in here if r["profile"] == instance.profile and r.get("best_published_ms")]
    other = [
        r["best_published_ms"]
        for r in here
        if r["system"] == "checkmate" and r.get("best_published_ms")
    ]
    best = min(same, key=lambda r: r["best_published_ms"], default=None)
    run = (best or {}).get("solver_run") or {}
    return {
        "published_ms": best["best_published_ms"] if best else None,
        "bound_ms": run.get("best_bound_ms"),
        "checkmate_ms": min(other, default=None),
    }


def plan_all(folder: Path, profile: str, seconds: float) -> Iterator[Row]:
    """Every model and budget with a published result in this profile."""
    results = json.loads((folder / "results.json").read_text())["results"]
    found = {
        (r["model"], float(r["budget_gb"]))
        for r in results
        if r["profile"] == profile and r.get("best_published_ms") and r["model"] in MODELS
    }
    for model, budget in sorted(found, key=lambda f: (MODELS.index(f[0]), f[1])):
        yield plan_one(folder, model, profile, budget, seconds)


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| model | budget | Lowtide | MONeT | ratio | Gurobi's bound | Checkmate | planned in |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [
            r.model, f"{r.budget_gb:g} GB", f"{r.ms:.1f} ms", _ms(r.published_ms),
            f"{r.ratio:.4f}" if r.ratio else "", _ms(r.bound_ms), _ms(r.checkmate_ms), f"{r.seconds:.1f} s",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    ratios = [r.ratio for r in rows if r.ratio]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Geometric mean of the ratios to MONeT's schedules: {mean:.4f}"]
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"
