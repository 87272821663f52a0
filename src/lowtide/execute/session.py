"""What plans the graphs of one module? The state that outlives a single compilation.

A `Session` belongs to one fitted module (or one `torch.compile` call). For every joint graph AOTAutograd hands over it prices
the ops, adds the rules' makers, finds or makes a program within the budget, and lowers it. There are three ways to a program:

- *Looked up.* A plan of the whole step exists, made by `fit` or read from a file: the graph's part of it is run.
- *Surveyed.* `fit` runs its first step. A graph that did not end in a graph break is probably the whole step and is planned as
  that; any other gets a quick, small plan. If the step turns out to have several graphs, `plan_step` plans them as one.
- *By itself.* A new shape, or `torch.compile(backend="lowtide")`: what other graphs hold at this moment is counted in, and a
  graph that ended in a break leaves half of the room to those that will follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import fx

from lowtide.capture.convert import Captured, convert
from lowtide.capture.prepare import prepare
from lowtide.cost.store import CostStore
from lowtide.errors import BudgetError, GraphError, PlanMismatchError
from lowtide.execute.caller import with_caller, without_caller
from lowtide.execute.lower import lower
from lowtide.execute.pieces import Part, graph_number, part, runs_of
from lowtide.execute.survey import Piece, Survey, piece_of
from lowtide.execute.tied import tie
from lowtide.execute.watch import Watch
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Kind
from lowtide.ir.json import graph_hash
from lowtide.ir.program import Program, unplanned
from lowtide.measure.price import other_bits, price
from lowtide.plan.floors import Floors
from lowtide.plan.infeasible import budget_error, or_rounded
from lowtide.plan.match import check_match, shrinks
from lowtide.plan.plan import Plan, plan_of
from lowtide.rules import DEFAULT_RULES, Exactness, Rule, add_makers
from lowtide.settings import settings
from lowtide.sim.memory import simulate
from lowtide.solve.planner import Progress, solve
from lowtide.solve.result import Result, Status
from lowtide.units import Budget

__all__ = ["Options", "Session"]

log = logging.getLogger("lowtide")

_RESERVE = 0.002
"""Share of the budget left free for what the simulator cannot see, such as the allocator's own alignment."""
_QUICK = 1.0
"""Seconds for a plan that only has to carry a survey."""
_AFTERWARDS = 5.0
"""Seconds to find out what a refused budget would need."""
_TIES = 3
"""How often a step whose graphs run more than once is planned with a smaller target."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for."""

    budget: Budget
    allow: tuple[str, ...] = ()
    rules: Sequence[Rule] | None = None
    """None: the default rules."""
    solver: str = "auto"
    seconds: float = 30.0
    """The most time the planner may take for one graph."""


@dataclass(eq=False)
class Session:
    options: Options
    store: CostStore
    environment: Mapping[str, str]
    floors: Floors
    held: Callable[[], Mapping[str, int]] = dict
    """Bytes by kind that exist during the whole step, in the graph or not."""
    free_bytes: Callable[[], int] | None = None
    """Bytes that may be used besides what is held: budget "device" is both together."""
    saved: Plan | None = None
    """A plan to run instead of planning."""
    trusted: bool = False
    """The saved plan was made in this process: a graph it does not know is a new shape, not a mistake."""
    more: tuple[Plan, ...] = ()
    """Further plans to look graphs up in: of other rounds of the same training."""
    aside: dict[str, tuple[Graph, Program]] = field(default_factory=dict)
    """Graphs by their hash that ran forward only when they were surveyed, as those of outputs nobody uses: what they take was seen as the caller's."""
    cautious: bool = False
    """Surveyed are steps of the user's own, in which more happens than one module's call: a graph is planned as one of several."""
    caller: tuple[int, int] = (0, 0)
    """Bytes that the caller's code was seen to take before a backward, and after it; for graphs planned by themselves."""
    planning: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while graphs are priced and planned."""
    one_by_one: bool = False
    """No survey will come: say so when there are several graphs."""
    measuring: Callable[[int, int, int], None] | None = None
    solving: Callable[[Progress], None] | None = None
    fixed: int | None = None
    """The budget in bytes once a step was planned: a share of the unplanned peak means that step's, in other shapes too."""
    learnt: int = 0
    """Bytes by which measured steps exceeded their simulation."""
    plans: list[Plan] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    """The graphs captured since the module was attached, in order."""
    watch: Watch = field(default_factory=Watch)

    @property
    def rounding(self) -> bool:
        """Other kernels may be used whose last bits differ."""
        return Exactness.ROUNDING in self.options.allow

    def begin(self, survey: Survey | None = None) -> None:
        """The module is about to be compiled anew."""
        self.pieces.clear()
        self.plans.clear()
        self.watch.survey = survey

    def partition(
        self,
        joint: fx.GraphModule,
        num_forward_outputs: int,
        static_inputs: Sequence[int],
        broken: str = "",
        given: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> tuple[fx.GraphModule, fx.GraphModule, Piece]:
        """Forward, backward, and what was captured. `broken`: where and why the graph ended, if in a graph break. `given`: the real
        tensors behind placeholders."""
        with self.planning():
            return self.partitioned(joint, num_forward_outputs, static_inputs, broken, given)

    def partitioned(
        self,
        joint: fx.GraphModule,
        num_forward_outputs: int,
        static_inputs: Sequence[int],
        broken: str,
        given: Mapping[str, torch.Tensor],
    ) -> tuple[fx.GraphModule, fx.GraphModule, Piece]:
        joint = prepare(joint, num_forward_outputs)
        captured = replace(convert(joint, num_forward_outputs, static_inputs), given=given)
        check_graph(captured.graph)
        rules = DEFAULT_RULES if self.options.rules is None else self.options.rules
        graph = add_makers(captured.graph, rules, self.options.allow, settings().fuel)
        check_graph(graph)
        probed = {rule.name for rule in rules if rule.probed}
        found = self.look_up(captured, graph)
        if found is not None:
            graph, program, handed = found
        else:
            graph = price(
                captured, graph, self.store, self.measuring, probed, rounding=self.rounding
            )
            try:
                program, handed = self.plan_graph(graph, broken), frozenset()
            except BudgetError as error:
                raise self.if_rounded(error, captured, rules) from None
        kept = _kept_bytes(graph, program)
        number = len(self.pieces)
        piece = piece_of(captured, graph, number, num_forward_outputs, broken, kept, program)
        self.pieces.append(piece)
        forward, backward = lower(captured, _without(graph, handed), program, num_forward_outputs)
        return forward, backward, piece

    # Looked up.

    def look_up(
        self, captured: Captured, graph: Graph
    ) -> tuple[Graph, Program, frozenset[str]] | None:
        """The saved plan's graph and program for what was captured; `graph` is that with the rules' makers."""
        if self.saved is None:
            return None
        wanted = graph_hash(captured.graph)
        parts = [one for plan in (self.saved, *self.more) for one in self.parts(plan)]
        for one in parts:
            if graph_hash(one.graph.as_captured()) == wanted:
                self.check_bits(captured, one.graph, one.program)
                return one.graph, one.program, one.handed
        if wanted in self.aside:
            return *self.aside[wanted], frozenset()
        if not self.trusted:
            check_match(parts[0].graph.as_captured(), captured.graph)
        smaller = self.look_up_larger(captured, graph, parts)
        if smaller is None:
            log.info("a graph that was not planned for is planned by itself: another shape or branch")  # fmt: skip
        return smaller

    def look_up_larger(
        self, captured: Captured, graph: Graph, parts: Sequence[Part]
    ) -> tuple[Graph, Program, frozenset[str]] | None:
        """The program of the same step with larger sizes, if there is one and its makers give the same bits here too."""
        others = [one for plan in self.plans for one in self.parts(plan)]
        for one in (*parts, *others):
            if shrinks(captured.graph, one.graph.as_captured()) and one.program.counts.keys() <= graph.op.keys():  # fmt: skip
                try:
                    check_program(graph, one.program)
                    self.check_bits(captured, graph, one.program)
                except (GraphError, PlanMismatchError):
                    continue
                log.info("a smaller shape runs the plan of a larger one")
                return graph, one.program, one.handed
        return None

    def parts(self, plan: Plan) -> list[Part]:
        """The most likely first: graphs are captured in the same order again."""
        number, whole = len(self.pieces), plan.graph
        runs = sorted(range(runs_of(whole)), key=lambda r: graph_number(whole, r) != number)
        return [part(whole, plan.program, run) for run in runs]

    def check_bits(self, captured: Captured, graph: Graph, program: Program) -> None:
        """A plan made elsewhere may rely on kernels that give other bits here."""
        rules = (*DEFAULT_RULES, *(self.options.rules or ()))
        probed = {rule.name for rule in rules if rule.probed}
        used = [graph.op[name] for name in program.counts]
        for name in sorted(
            other_bits(captured, graph, used, self.store, probed, rounding=self.rounding)
        ):
            raise PlanMismatchError(
                f"the plan runs {graph.op[name].of} of layer {graph.op[name].layer} as {graph.op[name].rule}, "
                "which gives other bits on this device than the model's own op\n"
                "     try   lowtide.fit(model, args, budget=...) to plan for this device"
            )

    # Surveyed, or by itself.

    def plan_graph(self, graph: Graph, broken: str) -> Program:
        surveyed = self.watch.survey is not None
        if surveyed and not self.pieces and not broken and not self.cautious:
            return self.plan_step(self.with_held(graph)).program
        if self.one_by_one and (broken or self.watch.kept_bytes()):
            self.warn(broken)
        before_backward, afterwards = self.caller
        alone = with_caller(self.with_others(graph), {1: before_backward}, afterwards)
        before = simulate(alone, unplanned(alone)).peak
        budget = self.budget_bytes(before)
        target = self.target(budget, before)
        seconds = min(_QUICK, self.options.seconds) if surveyed else self.options.seconds
        reserving = broken or (surveyed and self.cautious)
        result = self.solve(_reserving(alone, target) if reserving else alone, target, seconds)
        peak = simulate(alone, result.program).peak
        if peak > target and (not surveyed or self.cautious):
            result = self.solve(alone, target, self.options.seconds)
            if result.status is Status.INFEASIBLE:
                raise self.refusal(alone, result.program, budget, before)
        if not surveyed:
            self.note(alone, budget, result)
        return without_caller(alone, result.program)[1]

    def if_rounded(
        self, error: BudgetError, captured: Captured, rules: Sequence[Rule]
    ) -> BudgetError:
        """The same refusal, with what other rounding would reach. Of a step in one graph: else nobody knows the others yet."""
        rounding = [r for r in rules if r.exactness is Exactness.ROUNDING]
        if self.options.allow or not rounding or self.watch.survey is None or self.pieces:
            return error
        more = add_makers(captured.graph, rules, (Exactness.ROUNDING,), settings().fuel)
        probed = {rule.name for rule in rules if rule.probed}
        graph = self.with_held(
            price(captured, more, self.store, self.measuring, probed, rounding=True)
        )
        kept = simulate(graph, unplanned(graph))
        target = self.target(self.budget_bytes(kept.peak), kept.peak)
        result = self.solve(graph, target, min(_AFTERWARDS, self.options.seconds))
        fits = result.status is not Status.INFEASIBLE
        if not fits:
            self.floors.put(graph, result.program)
        return or_rounded(error, result.floor, result.seconds / kept.seconds - 1 if fits else None)

    def warn(self, broken: str) -> None:
        """Once."""
        self.one_by_one = False
        where = f" (break at {broken})" if broken else ""
        log.warning(
            "the step has more than one graph%s; here each is planned by itself. lowtide.fit plans them as one",
            where,
        )

    def plan_step(self, graph: Graph) -> Plan:
        """Plan a whole step; `graph` has everything that is held counted in."""
        before = simulate(graph, unplanned(graph)).peak
        budget = self.budget_bytes(before)
        target = aim = self.target(budget, before)
        for _ in range(_TIES):
            result = tie(graph, self.solve(graph, aim, self.options.seconds), target)
            if result.status is not Status.INFEASIBLE or result.peak <= target:
                break
            aim -= result.peak - target
            if aim <= 0:
                break
        if result.peak > target:
            raise self.refusal(graph, result.program, budget, before)
        return self.note(graph, budget, result)

    def solve(self, graph: Graph, target: int, seconds: float) -> Result:
        return solve(
            graph,
            target,
            solver=self.options.solver,
            seconds=seconds,
            report=self.solving,
            known=self.floors.get(graph),
        )

    def refusal(self, graph: Graph, smallest: Program, budget: int, before: int) -> BudgetError:
        """What is suggested instead is kept, and leaves the reserve, so that asking for it works."""
        smallest = self.floors.put(graph, smallest)
        needed = int(simulate(graph, smallest).peak / (1 - _RESERVE)) + self.learnt + 1
        return budget_error(graph, smallest, budget, before, needed)

    def note(self, graph: Graph, budget: int, result: Result) -> Plan:
        if result.status is Status.INFEASIBLE:  # only of the half that was reserved
            result = replace(result, status=Status.FEASIBLE)
        plan = plan_of(
            graph, budget, result, allow=self.options.allow, environment=self.environment
        )
        self.plans.append(plan)
        log.info("%s", plan)
        return plan

    def target(self, budget: int, before: int) -> int:
        return budget - self.learnt - (int(budget * _RESERVE) if before > budget else 0)

    def budget_bytes(self, unplanned_peak: int) -> int:
        budget = self.options.budget
        if self.fixed is not None:
            return self.fixed
        if budget.bytes is not None:
            return budget.bytes
        if budget.device:
            assert self.free_bytes is not None
            return sum(self.held().values()) + self.free_bytes()
        return int(unplanned_peak * (budget.fraction or 1.0))

    # What else exists.

    def with_held(self, graph: Graph, besides: Mapping[str, int] | None = None) -> Graph:
        """What exists besides the graph's own inputs: other parameters, optimizer state, the rest of the batch."""
        inside: dict[str, int] = {}
        for storage in dict.fromkeys(graph.storage(o.value) for o in graph.outside if o.owned):
            value = graph.value[storage]
            inside[value.kind] = inside.get(value.kind, 0) + value.bytes
        held = {kind: size - inside.get(kind, 0) for kind, size in self.held().items()}
        held = {k: v for k, v in held.items() if v > 0}
        for kind, size in (besides or {}).items():
            held[kind] = held.get(kind, 0) + size
        return replace(graph, held=held)

    def with_others(self, graph: Graph) -> Graph:
        """The same for a graph that may be one of several: what the others hold right now, and the gradients they may make.

        A later graph's inputs look like a batch; the batch itself is then counted as if none of it were among them.
        """
        others = self.watch.kept_bytes()
        counted = self.with_held(graph, {Kind.OTHER: others} if others else {})
        held = dict(counted.held)
        if others or self.pieces:
            whole = self.held()
            trained = sum(
                v.bytes for v in graph.values if v.kind is Kind.PARAMETER and not v.is_view
            )
            besides = max(0, whole.get(Kind.PARAMETER, 0) - trained)
            held[Kind.GRADIENT] = max(held.get(Kind.GRADIENT, 0), besides)
            held[Kind.BATCH] = whole.get(Kind.BATCH, 0)
        return replace(graph, held={str(k): v for k, v in held.items() if v > 0})


def _reserving(graph: Graph, target: int) -> Graph:
    """Half of what is not held already is left to the graphs that follow."""
    base = simulate(graph, unplanned(graph)).base
    held = dict(graph.held)
    held[Kind.OTHER] = held.get(Kind.OTHER, 0) + max(0, target - base) // 2
    return replace(graph, held=held)


def _kept_bytes(graph: Graph, program: Program) -> int:
    kept = simulate(graph, program).kept[0]
    return sum(graph.value[name].bytes for name in kept)


def _without(graph: Graph, handed: frozenset[str]) -> Graph:
    """For lowering: what the caller has let go of before backward may be made again there."""
    return replace(graph, required=tuple(r for r in graph.required if r.value not in handed))
