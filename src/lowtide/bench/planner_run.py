"""How do planners compare on the same graphs and budgets? One row for each graph, budget and solver.

Goes in: graphs with costs, budgets in percent of the unplanned peak, names of solvers. Comes out: rows as they are made, and what they amount to as
Markdown, JSON and a picture. Each row is planned in a process of its own (`bench/apart.py`). A solver that has no answer, or none within the
budget, gets a dash in the tables and the reason in the JSON. All answers are checked and weighed by the one simulator, and all are
compared with the same lower bound.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.bench.apart import apart
from lowtide.bench.warm import warm_up
from lowtide.draw.frontiers import Panel, frontiers_svg
from lowtide.errors import LowtideError
from lowtide.ir.graph import Graph
from lowtide.ir.program import unplanned
from lowtide.sim.memory import Timeline, simulate
from lowtide.solve.planner import SOLVERS, solve
from lowtide.solve.result import Result, Status
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["BUDGETS", "COMPARED", "Results", "Row", "compare", "facts", "frontiers", "tables"]

BUDGETS = (80, 70, 60, 50, 40, 30, 20)
COMPARED = tuple(name for name in SOLVERS if name != "search")
"""By default: `auto` is the search wherever no other solver is better."""
_PATIENCE = 120.0
"""A solver that does not stop is stopped so many seconds after twice its time."""


@dataclass(frozen=True)
class Row:
    model: str
    ops: int
    """Ops that run in the unplanned step."""
    unplanned_peak: int
    unplanned_seconds: float
    percent: float
    budget: int
    solver: str
    planning_seconds: float | None = None
    """From the graph to the checked result, as a caller waits for it."""
    processor_seconds: float | None = None
    """The same by the process's own clock, which runs only while the process does: for busy machines."""
    solve_seconds: float | None = None
    """As the solver reports it, without setting up the problem."""
    seconds: float | None = None
    peak: int | None = None
    overhead: float | None = None
    gap: float | None = None
    bound: float | None = None
    floor: int | None = None
    status: str = ""
    why: str = ""
    """What was done, or why there is no answer."""

    @property
    def fits(self) -> bool:
        return self.peak is not None and self.peak <= self.budget


def compare(
    name: str,
    graph: Graph,
    *,
    budgets: Sequence[float] = BUDGETS,
    solvers: Sequence[str] = COMPARED,
    seconds: float = 10.0,
) -> Iterator[Row]:
    warm_up()
    before = simulate(graph, unplanned(graph))
    for percent in budgets:
        for solver in solvers:
            yield _row(name, graph, before, percent, solver, seconds)


def _row(
    name: str, graph: Graph, before: Timeline, percent: float, solver: str, seconds: float
) -> Row:
    budget = int(before.peak * percent / 100)
    row = Row(name, len(before.moments), before.peak, before.seconds, percent, budget, solver)

    def plan() -> dict[str, object]:
        started, used = time.perf_counter(), time.process_time()
        result = solve(graph, budget, solver=solver, seconds=seconds)
        took, used = time.perf_counter() - started, time.process_time() - used
        return {
            **_answer(result, before.seconds),
            "planning_seconds": took,
            "processor_seconds": used,
        }

    try:
        answer = apart(plan, 2 * seconds + _PATIENCE)
    except LowtideError as error:
        answer = {"why": str(error).removeprefix(f"{error.code} "), "status": "no answer"}
    return Row(**{**asdict(row), **answer})


def _answer(result: Result, before: float) -> dict[str, object]:
    fits = result.status is not Status.INFEASIBLE
    return {
        "solve_seconds": result.solve_seconds,
        "seconds": result.seconds,
        "peak": result.peak,
        "overhead": result.seconds / before - 1,
        "gap": result.gap if fits else None,
        "bound": result.bound,
        "floor": result.floor,
        "status": str(result.status),
        "why": result.why if fits else f"its peak is {format_bytes(result.peak)}: over the budget",
    }


class Results:
    """Rows on disk as they come: one line of JSON each, so that a crash loses nothing; the rest is made anew from them."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.rows = folder, list[Row]()
        self.settings = {**settings, "machine": _machine()}
        self.lines = folder / "planner.jsonl"
        self.lines.write_text("")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        with self.lines.open("a") as lines:
            lines.write(json.dumps(asdict(row)) + "\n")

    def write(self) -> None:
        """Table, JSON and picture of the rows so far."""
        text = f"{tables(self.rows)}\n\n{_described(self.settings)}\n"
        (self.folder / "planner.md").write_text(text)
        content = json.dumps({**self.settings, **facts(self.rows)}, indent=1)
        (self.folder / "planner.json").write_text(content)
        (self.folder / "frontiers.svg").write_text(frontiers(self.rows))


def facts(rows: Iterable[Row]) -> dict[str, object]:
    return {"rows": [asdict(row) for row in rows]}


def _machine() -> dict[str, object]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def _described(settings: Mapping[str, object]) -> str:
    words = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "machine")
    return f"Costs are estimated from a data sheet, nothing was run ({words})."


# Tables.


def tables(rows: Sequence[Row]) -> str:
    """Markdown: for each model a line of facts and a table of budgets by solvers."""
    models = dict.fromkeys(row.model for row in rows)
    parts = [_table([row for row in rows if row.model == model]) for model in models]
    return "\n\n".join([*parts, _summary(rows)] if rows else ["No rows."])


def _table(rows: Sequence[Row]) -> str:
    first = rows[0]
    solvers = list(dict.fromkeys(row.solver for row in rows))
    floor = min((row.floor for row in rows if row.floor is not None), default=None)
    size = format_bytes(first.unplanned_peak)
    told = "" if floor is None else f", floor {_share(floor, first)}"
    lines = [
        f"### {first.model}",
        "",
        f"{first.ops} ops, unplanned {size} and {format_seconds(first.unplanned_seconds)} a step{told}",
        "",
        f"| budget | bound | {' | '.join(solvers)} |",
        f"|---|---|{'---|' * len(solvers)}",
    ]
    for percent in dict.fromkeys(row.percent for row in rows):
        here = {row.solver: row for row in rows if row.percent == percent}
        cells = [_cell(here.get(solver)) for solver in solvers]
        lines.append(f"| {percent:g}% | {_bound(here.values())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(size: int, row: Row) -> str:
    return f"{format_bytes(size)} ({100 * size / row.unplanned_peak:.0f}%)"


def _bound(rows: Iterable[Row]) -> str:
    """What no plan can beat, as overhead: the best bound that was proved."""
    found = [row.bound / row.unplanned_seconds - 1 for row in rows if row.bound is not None]
    return format_percent(max(found)) if found else ""


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if not row.fits or row.overhead is None or row.planning_seconds is None:
        return "-"
    gap = f", gap {100 * (row.gap or 0):.1f}%" if row.solver in ("auto", "search") else ""
    return f"{format_percent(row.overhead)}{gap}, {row.planning_seconds:.1f} s"


def _summary(rows: Sequence[Row]) -> str:
    """How often each solver fits, and how often it is the fastest or within a thousandth of it."""
    best: dict[tuple[str, float], float] = {}
    for row in rows:
        if row.fits and row.seconds is not None:
            key = (row.model, row.percent)
            best[key] = min(best.get(key, row.seconds), row.seconds)
    lines = ["### All", "", "| solver | within the budget | fastest |", "|---|---|---|"]
    for solver in dict.fromkeys(row.solver for row in rows):
        mine = [row for row in rows if row.solver == solver]
        fits = [row for row in mine if row.fits and row.seconds is not None]
        won = sum((row.seconds or 0) <= 1.001 * best[row.model, row.percent] for row in fits)
        lines.append(f"| {solver} | {len(fits)} of {len(mine)} | {won} |")
    return "\n".join(lines)


def frontiers(rows: Sequence[Row]) -> str:
    """The picture: memory and time of every answer, a panel for each model."""
    panels = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model]
        lines: dict[str, list[tuple[float, float]]] = {row.solver: [] for row in mine}
        for row in mine:
            if row.fits and row.peak is not None and row.overhead is not None:
                lines[row.solver].append((row.peak / row.unplanned_peak, row.overhead))
        first = mine[0]
        words = f"{format_bytes(first.unplanned_peak)}, {format_seconds(first.unplanned_seconds)}"
        panels.append(Panel(model, words, lines))
    return frontiers_svg(panels)
