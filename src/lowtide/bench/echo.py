"""Does less memory become speed? The poster's figure of Echo, on this machine.

For each model, at the authors' batch B:

    baseline B      the eager step
    mirror B        Chen's sqrt(n)
    echo B          Echo's pass
    lowtide B       feature maps in a third of the baseline's room, or as low as it goes
    lowtide 2B      twice the batch within the baseline's peak
    lowtide best    of the batches up to the largest that fits the baseline's peak, the one with the most samples per second

Peaks are measured, times are taken in turn. Where the bytes of a peak lie, by layer and by data structure, is the simulator's answer, which
agrees with the measured peak.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lowtide
from lowtide.bench.echo_models import Workload, workload
from lowtide.bench.race import interleave
from lowtide.draw.bars import Bar, bars_svg
from lowtide.errors import LowtideError
from lowtide.ir.program import Program, unplanned
from lowtide.measure.memory import held_by_kind
from lowtide.measure.peak import measure_peak
from lowtide.measure.preserve import preserved
from lowtide.measure.step import Step
from lowtide.plan.plan import Plan
from lowtide.sim.memory import Timeline, simulate
from lowtide.sim.timeline import breakdown
from lowtide.solve.baselines import BASELINES
from lowtide.units import format_bytes

__all__ = ["EchoReport", "compare_echo"]

_FEATURES = {"activation", "activation kept", "op workspace"}
_SHARE = 1 / 3
"""Of the baseline's feature maps, for Lowtide at the same batch."""
_TRIES = 4
_SLACK = 1.02
"""A program's simulated peak may be missed by so much when it is run."""


@dataclass
class Row:
    name: str
    batch: int = 0
    peak: int | None = None
    """Measured bytes."""
    layers: dict[str, int] = field(default_factory=dict)
    """Bytes at the simulated peak."""
    kinds: dict[str, int] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def per_second(self) -> float | None:
        return self.batch / statistics.median(self.times) if self.times else None

    @property
    def features(self) -> int:
        return sum(size for kind, size in self.kinds.items() if kind in _FEATURES)

    def locate(self, timeline: Timeline) -> None:
        layers, kinds = Counter[str](), Counter[str]()
        for part in breakdown(timeline, timeline.peak_moment):
            layers[part.layer.partition(".")[0] or "other"] += part.bytes
            kinds[part.kind] += part.bytes
        self.layers, self.kinds = dict(layers.most_common()), dict(kinds.most_common())


@dataclass
class Model:
    name: str
    scale: float
    rows: list[Row] = field(default_factory=list)

    def text(self) -> str:
        base = self.rows[0]
        lines = [
            f"## {self.name}, scale {self.scale:g}",
            "",
            "| | batch | peak | feature maps | samples/s | against baseline |",
            "|---" * 6 + "|",
        ]
        for row in self.rows:
            if row.failed:
                lines.append(f"| {row.name} | {row.batch} | {row.failed} | | | |")
                continue
            speed, first = row.per_second, base.per_second
            ratio = f"{speed / first:.2f}x" if speed and first else ""
            share = f" ({row.features / base.features:.0%})" if base.features else ""
            lines.append(
                f"| {row.name} | {row.batch} | {format_bytes(row.peak or 0)} | {format_bytes(row.features)}{share} | {speed or 0:.1f} | {ratio} |"
            )
        for title, attribute in (("layer", "layers"), ("data structure", "kinds")):
            lines += ["", *self._parts(title, attribute)]
        return "\n".join(lines)

    def _parts(self, title: str, attribute: str) -> list[str]:
        rows = [row for row in self.rows if not row.failed]
        names = list(dict.fromkeys(name for row in rows for name in getattr(row, attribute)))
        lines = [f"| {title} at the peak | " + " | ".join(r.name for r in rows) + " |", "|---" * (len(rows) + 1) + "|"]  # fmt: skip
        for name in names:
            cells = (format_bytes(getattr(row, attribute).get(name, 0)) for row in rows)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return lines


@dataclass
class EchoReport:
    models: list[Model] = field(default_factory=list)

    def text(self) -> str:
        return "\n\n".join(["# Memory into speed", *(m.text() for m in self.models)])

    def data(self) -> dict[str, Any]:
        return {"models": [asdict(m) for m in self.models]}

    def picture(self) -> str:
        groups = {
            m.name: [Bar(f"{r.name} ({r.batch})", r.kinds, r.per_second) for r in m.rows if not r.failed]
            for m in self.models
        }  # fmt: skip
        return bars_svg(groups, "Memory at the peak, and samples per second")

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "echo.json").write_text(json.dumps(self.data(), indent=1))
        (folder / "echo.svg").write_text(self.picture())
        page = folder / "echo.md"
        page.write_text(self.text() + "\n")
        return page


def compare_echo(
    names: Sequence[str],
    folder: Path,
    *,
    scale: float = 1.0,
    batch: int | None = None,
    most: int = 16,
    rounds: int = 7,
    seconds: float = 30.0,
    tell: Callable[[str], None] = lambda line: None,
) -> EchoReport:
    """Batches up to `most` times B are tried. The report is saved after each model; Ctrl-C ends it with the models done so far."""
    report = EchoReport()
    try:
        for name in names:
            found = _Race(workload(name, scale), batch, most, seconds, tell).run(rounds)
            report.models.append(Model(name, scale, found))
            report.save(folder)
    except KeyboardInterrupt:
        tell("stopped: the models done so far are kept")
    return report


class _Race:
    def __init__(
        self,
        load: Workload,
        batch: int | None,
        most: int,
        seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self.load, self.batch, self.seconds, self.tell = load, batch or load.batch, seconds, tell
        self.most = most * self.batch
        self.rows: list[Row] = []
        self.steps: dict[str, Step] = {}

    def run(self, rounds: int) -> list[Row]:
        base, plan = self.baseline()
        self.other("mirror B", "chen", plan)
        self.other("echo B", "echo", plan)
        assert base.peak is not None, "measured"
        self.fewer_features("lowtide B", base)
        self.try_fit(Row("lowtide 2B", 2 * self.batch), base.peak)
        self.best(base.peak)
        timed = {row.name: row for row in self.rows if row.name in self.steps}
        calls: dict[str, Callable[[], None]] = {n: self.timed(s) for n, s in self.steps.items()}
        for _, name, taken in interleave(calls, rounds):
            timed[name].times.append(taken)
        return self.rows

    def timed(self, step: Step) -> Callable[[], None]:
        def call() -> None:
            with preserved(step.model, step.args):
                step()

        return call

    def baseline(self) -> tuple[Row, Plan]:
        row = Row("baseline B", self.batch)
        self.rows.append(row)
        plan = self.fit(row, 1 << 60, rules=())
        row.locate(plan.unplanned)
        step = Step(copy.deepcopy(self.load.model), self.load.make_batch(self.batch), {}, None)
        row.peak = self.measured(step)
        self.steps[row.name] = step
        return row, plan

    def measured(self, step: Step) -> int:
        step()  # compiles what has to be
        step.model.zero_grad()
        held = sum(held_by_kind(step.model, (step.args, {}), None).values())
        peak = measure_peak(step, held)
        step.model.zero_grad()
        return peak

    def other(self, name: str, solver: str, plan: Plan) -> None:
        """A baseline's program with the smallest peak it has, run as it is."""
        graph = plan.graph
        program: Program = BASELINES[solver](graph, 0)
        peak = simulate(graph, program).peak
        if peak >= simulate(graph, unplanned(graph)).peak:
            self.tell(f"{name}: no lower than the baseline")
        self.try_fit(
            Row(name, self.batch), round(peak * _SLACK), rules=(), solver=solver, verify=False
        )

    def fewer_features(self, name: str, base: Row) -> None:
        """Feature maps in a share of the baseline's room, or as low as it goes: a budget is a peak's, of which they are more or
        less, so it takes a few tries."""
        wanted, row = _SHARE * base.features, Row(name, self.batch)
        budget = (base.peak or 0) - round(base.features - wanted)
        self.rows.append(row)
        for _ in range(_TRIES):
            try:
                plan = self.fit(row, budget)
            except lowtide.BudgetError as error:
                row.locate(self.fit(row, round(error.floor * _SLACK)).timeline)
                return
            row.locate(plan.timeline)
            if row.features <= wanted:
                return
            budget = min(budget, plan.peak) - round(row.features - wanted)

    def best(self, budget: int) -> None:
        found = lowtide.largest_batch(
            self.load.make_batch, copy.deepcopy(self.load.model), budget=budget, start=self.batch, most=self.most, seconds=self.seconds, tell=self.tell,
        )  # fmt: skip
        self.tell(str(found))
        self.try_fit(Row(f"lowtide best of up to {found.largest}", found.best), budget)

    def try_fit(self, row: Row, budget: int, **options: Any) -> None:
        self.rows.append(row)
        try:
            row.locate(self.fit(row, budget, **options).timeline)
        except LowtideError as error:
            row.failed = str(error).splitlines()[0]
            self.tell(f"{self.load.name} {row.name}: {row.failed}")

    def fit(self, row: Row, budget: int, **options: Any) -> Plan:
        model, args = copy.deepcopy(self.load.model), self.load.make_batch(row.batch)
        plan = lowtide.fit(model, args, budget=budget, seconds=self.seconds, **options)
        step = self.steps[row.name] = Step(model, args, {}, None)
        row.peak = plan.measured_peak or self.measured(step)
        self.tell(f"{self.load.name} {row.name}: {format_bytes(row.peak)}, predicted {plan.overhead:+.1%}")  # fmt: skip
        return plan
