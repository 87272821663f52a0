"""What does each rule contribute? The same steps with no rules, with each of them alone, and with all.

A model is captured and priced once with everything; a variant is that graph without the other rules' ops. Each is planned for each
budget; all steps of a model are timed in turn, beside the step that keeps everything. With a single rule only the middle budget's plan is run, and of the
others stands what the plan says. A rule that the planner had and did not use is said to be unused: that plan is one of those without rules.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lowtide import api
from lowtide.bench.models import make
from lowtide.bench.peers import EAGER, Step, agreement, clock
from lowtide.bench.race import interleave
from lowtide.ir.graph import Graph
from lowtide.plan.plan import Plan, plan_of
from lowtide.rules import BY_DEFAULT, DEFAULT_RULES, Exactness
from lowtide.solve.planner import solve
from lowtide.solve.result import Status
from lowtide.units import format_bytes

__all__ = ["FRACTIONS", "Ablation", "ablate", "only"]

FRACTIONS = (0.6, 0.45, 0.33)
_ALONE = 0.45
"""Where plans with a single rule are run."""
_DEFAULT = tuple(r.name for r in DEFAULT_RULES if r.exactness in BY_DEFAULT)
_ALL = (*_DEFAULT, *(r.name for r in DEFAULT_RULES if r.exactness is Exactness.ROUNDING))
VARIANTS: dict[str, tuple[str, ...]] = {
    "none": (),
    **{name: (name,) for name in _DEFAULT},
    "all of these": _DEFAULT,
    "all, and rounding": _ALL,
}
_WHOLE = "everything kept"


@dataclass
class Entry:
    """One variant at one budget."""

    variant: str
    fraction: float
    floor: int
    """The smallest peak found, in simulated bytes."""
    predicted: float | None = None
    used: bool = True
    """Whether the plan has an op of the one rule that it was given."""
    peak: int | None = None
    error: float | None = None
    """The worst relative error of a gradient against eager; 0.0 for the same bits."""
    times: list[float] = field(default_factory=list)
    overhead: float | None = None


@dataclass
class Ablation:
    """Of all models so far."""

    unplanned: dict[str, int] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)

    def text(self) -> str:
        return "\n\n".join(self.section(name) for name in self.entries)

    def section(self, name: str) -> str:
        whole = self.unplanned[name]
        lines = [f"## {name}: {format_bytes(whole)} without a plan", ""]
        heads = [f"{f:.0%}: measured (predicted)" for f in FRACTIONS]
        lines += [f"| rules | floor | {' | '.join(heads)} | worst gradient error |"]
        lines += ["|---" * (len(FRACTIONS) + 3) + "|"]
        for variant in VARIANTS:
            rows = [e for e in self.entries[name] if e.variant == variant]
            if rows:
                floor = min(e.floor for e in rows) / whole
                cells = [_cell(next((e for e in rows if e.fraction == f), None)) for f in FRACTIONS]
                lines.append(f"| {variant} | {floor:.2f} | {' | '.join(cells)} | {_errors(rows)} |")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        entries = {name: [asdict(e) for e in rows] for name, rows in self.entries.items()}
        return {"unplanned": self.unplanned, "entries": entries}

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rules.json").write_text(json.dumps(self.data(), indent=1))
        page = folder / "rules.md"
        page.write_text(self.text() + "\n")
        return page


def _cell(entry: Entry | None) -> str:
    if entry is None or entry.predicted is None:
        return "not reached"
    if not entry.used:
        return "unused"
    measured = f"{entry.overhead:+.1%} " if entry.overhead is not None else ""
    return f"{measured}(~{entry.predicted:+.1%})"


def _errors(rows: Sequence[Entry]) -> str:
    found = [e.error for e in rows if e.error is not None]
    return "" if not found else f"{max(found):.0e}" if max(found) else "same bits"


def ablate(
    names: Sequence[str],
    folder: Path,
    *,
    rounds: int = 5,
    seconds: float = 5.0,
    tell: Callable[[str], None] = lambda line: None,
) -> Ablation:
    """Ctrl-C ends it with the models done so far."""
    found = Ablation()
    try:
        for name in names:
            found.unplanned[name], rows = _one(name, rounds, seconds, tell)
            found.entries[name] = rows
            found.save(folder)
    except KeyboardInterrupt:
        tell("stopped: the models done so far are kept")
    return found


def _one(
    name: str, rounds: int, seconds: float, tell: Callable[[str], None]
) -> tuple[int, list[Entry]]:
    model, args = make(name)
    expected = Step(copy.deepcopy(model), args, EAGER).results(list(model.buffers()))
    everything = api.fit(
        copy.deepcopy(model), args, budget="100%", allow=("rounding",), seconds=1.0, verify=False
    )
    steps: dict[str, Step] = {}
    entries: dict[str, Entry] = {}
    kept = _keep_all(everything)
    for label, entry, plan in [
        (_WHOLE, None, kept),
        *_plans(everything, seconds, entries, tell, name),
    ]:
        twin = copy.deepcopy(model)
        api.apply(twin, plan)
        step = Step(twin, args, EAGER)
        if entry is not None:
            entry.error = agreement(step.results(list(model.buffers())), expected).gradients
            entry.peak = step.peak()
        steps[label] = step
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _, label, taken in interleave(steps, rounds, lambda label: steps[label].clean(), clock()):
        times[label].append(taken)
    base = statistics.median(times[_WHOLE])
    for label, entry in entries.items():
        if label in times:
            entry.times = times[label]
            entry.overhead = statistics.median(times[label]) / base - 1
    return everything.unplanned_peak, list(entries.values())


def _plans(
    everything: Plan,
    seconds: float,
    entries: dict[str, Entry],
    tell: Callable[[str], None],
    name: str,
) -> Iterator[tuple[str, Entry, Plan]]:
    for variant, rules in VARIANTS.items():
        graph = only(everything.graph, rules)
        if rules and graph == everything.graph.as_captured():
            continue
        for fraction in FRACTIONS:
            label = f"{variant} {fraction}"
            limit = everything.unplanned_peak * fraction
            result = solve(graph, int(limit), seconds=seconds)
            entry = entries[label] = Entry(variant, fraction, result.floor)
            tell(f"{name} {label}: floor {format_bytes(result.floor)}")
            if result.status is not Status.INFEASIBLE:
                plan = plan_of(graph, int(limit), result, allow=everything.allow)
                entry.predicted, entry.used = plan.overhead, _uses(plan, rules)
                if entry.used and (len(rules) != 1 or fraction == _ALONE):
                    yield label, entry, plan


def _uses(plan: Plan, rules: Sequence[str]) -> bool:
    """A single rule; in place everything may be."""
    if len(rules) != 1 or "in_place" in rules:
        return True
    return any(plan.graph.op[name].rule for _, name in plan.program)


def _keep_all(everything: Plan) -> Plan:
    graph, budget = everything.graph.as_captured(), 2 * everything.unplanned_peak
    return plan_of(graph, budget, solve(graph, budget, seconds=1.0), allow=everything.allow)


def only(graph: Graph, rules: Sequence[str]) -> Graph:
    """With the makers of these rules alone."""
    left = graph.without({o.name for o in graph.ops if o.rule and o.rule not in rules})
    if "in_place" in rules:
        return left
    return left.with_ops(replace(o, over=()) for o in left.ops)
