"""What was decided for a step, what will it cost, and what was measured? The object that `fit` and `plan` return.

A `Plan` is a frozen value: the graph with costs, the budget, the program, and the numbers that belong to it. Everything a
report shows is here or follows from the simulator. It prints itself; `plan/format.py` writes and reads its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.draw.charts import timeline_svg
from lowtide.draw.notebook import shown
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program, unplanned
from lowtide.rules import DEFAULT_RULES, SAME_BITS, Exactness
from lowtide.sim.memory import Timeline, simulate
from lowtide.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.solve.result import Result

__all__ = ["Plan", "plan_of"]


@dataclass(frozen=True)
class Plan:
    graph: Graph
    program: Program
    budget: int
    """The most bytes a step may have allocated at once."""
    status: str
    solver: str
    solve_seconds: float
    lower_bound: float
    """Seconds that no plan at this budget can beat."""
    floor: int
    """The smallest peak found for any plan, in bytes."""
    why: str = ""
    allow: tuple[str, ...] = ()
    """What the user allowed besides exact plans."""
    measured_peak: int | None = None
    """Bytes, from the allocator, of a real step; None if none was measured."""
    gradient_error: float | None = None
    """Of a plan that need not be exact: the worst relative error of a gradient against the unplanned step; None if not measured."""
    covers: tuple[str, ...] = ()
    """What of the model is planned, and what is not, in words."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.graph, self.program)

    @cached_property
    def unplanned(self) -> Timeline:
        return simulate(self.graph, unplanned(self.graph))

    @property
    def peak(self) -> int:
        """Simulated bytes."""
        return self.timeline.peak

    @property
    def seconds(self) -> float:
        """Simulated seconds of a step."""
        return self.timeline.seconds

    @property
    def unplanned_peak(self) -> int:
        return self.unplanned.peak

    @property
    def unplanned_seconds(self) -> float:
        return self.unplanned.seconds

    @property
    def overhead(self) -> float:
        """Planned over unplanned seconds, minus 1."""
        return self.seconds / self.unplanned_seconds - 1 if self.unplanned_seconds else 0.0

    @property
    def gap(self) -> float:
        """How much slower than the best possible this plan may be."""
        return max(0.0, self.seconds / self.lower_bound - 1) if self.lower_bound > 0 else 0.0

    @property
    def exact(self) -> bool:
        """The same bits as without a plan: nothing else was allowed, so nothing else was used, and no layer has another kernel."""
        return not {*self.allow} - {*SAME_BITS} and not self.other_kernels

    @property
    def exact_how(self) -> str:
        """What was allowed besides, of an exact plan."""
        said = {
            Exactness.MOVE: "some through other memory",
            Exactness.SPARSE: "some without their zeros",
        }
        return " and ".join(words for allowed, words in said.items() if allowed in self.allow)

    @cached_property
    def other_kernels(self) -> tuple[str, ...]:
        """Captured ops that run by another kernel, whose last bits differ."""
        rules = {r.name for r in DEFAULT_RULES if r.exactness is Exactness.KERNEL}
        ops = (self.graph.op[name] for name in self.program.counts)
        return tuple(sorted({op.of for op in ops if op.rule in rules}))

    @cached_property
    def kept(self) -> Mapping[str, int]:
        """What is held from forward to backward, with its bytes."""
        names = sorted(set().union(*self.timeline.kept))
        return {n: self.graph.value[n].bytes for n in names}

    @cached_property
    def recomputed(self) -> Mapping[str, int]:
        """Captured ops whose outputs are made more than once, by whichever op, and how often."""
        made = Counter(
            output
            for name, count in self.timeline.program.counts.items()
            for output in self.graph.op[name].outputs
            for _ in range(count)
        )
        again = {o.name: max((made[n] for n in o.outputs), default=0) for o in self.graph.captured}
        return {name: count for name, count in again.items() if count > 1}

    def save(self, path: str | Path) -> Path:
        from lowtide.plan.format import save_plan

        return save_plan(self, Path(path))

    def _bits(self) -> str:
        if self.exact:
            return ", ".join(filter(None, ("same bits", self.exact_how)))
        error = self.gradient_error
        measured = "not measured" if error is None else f"measured {error:.0e}"
        kernels = f"{len(self.other_kernels)} ops by another kernel" if self.other_kernels else ""
        allowed = f"allowed: {', '.join(self.allow)}" if self.allow else ""
        return f"{', '.join(filter(None, (allowed, kernels)))} (gradient error {measured})"

    def __str__(self) -> str:
        fits = self.status != "infeasible"
        measured = f", measured {format_bytes(self.measured_peak)}" if self.measured_peak else ""
        extra = sum(count - 1 for count in self.recomputed.values())
        return "\n".join(
            [
                (
                    f"{'fits' if fits else 'does not fit'}: peak ~{format_bytes(self.peak)}{measured} of a budget of "
                    f"{format_bytes(self.budget)} (unplanned ~{format_bytes(self.unplanned_peak)}), "
                    f"step time ~{format_percent(self.overhead)}"
                ),
                (
                    f"keeps {format_bytes(sum(self.kept.values()))} in {len(self.kept)} tensors from forward to backward, "
                    f"runs {extra} ops again; {self._bits()}"
                ),
                (
                    f"{self.status} by {self.solver} in {format_seconds(self.solve_seconds)}, at most "
                    f"{100 * self.gap:.1f}% slower than any plan can be; smallest feasible budget ~{format_bytes(self.floor)}"
                ),
                *self.covers,
            ]
        )

    def _repr_html_(self) -> str:
        svg = timeline_svg(self.unplanned.points, self.timeline.points, self.budget)
        return shown(str(self), svg)


def plan_of(
    graph: Graph,
    budget: int,
    result: Result,
    *,
    allow: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Plan:
    """The plan a planner's result amounts to."""
    return Plan(
        graph=graph,
        program=result.program,
        budget=budget,
        status=str(result.status),
        solver=result.solver,
        solve_seconds=result.solve_seconds,
        lower_bound=result.bound,
        floor=result.floor,
        why=result.why,
        allow=allow,
        environment=environment or {},
    )
