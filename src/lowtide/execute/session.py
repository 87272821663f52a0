"""What plans the graphs of one module? The state that outlives a single compilation.

A `Session` belongs to one fitted module (or one `torch.compile` call). For every joint graph AOTAutograd hands over it prices
the ops, adds the rules' makers, plans within the budget and lowers the program. Graphs captured during one call of the
module are pieces of one step (graph breaks); a graph captured in a later call is another shape of the same module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from lowtide.capture.convert import Captured, convert
from lowtide.capture.prepare import prepare
from lowtide.cost.store import CostStore
from lowtide.execute.lower import lower
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind
from lowtide.ir.program import Program, unplanned
from lowtide.measure.price import price
from lowtide.plan.infeasible import budget_error
from lowtide.plan.match import check_match
from lowtide.plan.plan import Plan, plan_of
from lowtide.rules import DEFAULT_RULES, Rule, add_makers
from lowtide.sim.memory import simulate
from lowtide.solve.planner import Progress, solve
from lowtide.solve.result import Status
from lowtide.units import Budget

__all__ = ["Options", "Session"]

log = logging.getLogger("lowtide")

_RESERVE = 0.002
"""Share of the budget left free for what the simulator cannot see, such as the allocator's own alignment."""


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


@dataclass
class Session:
    options: Options
    store: CostStore
    environment: Mapping[str, str]
    held: Callable[[], Mapping[str, int]] = dict
    """Bytes by kind that exist during the whole step, in the graph or not."""
    free_bytes: Callable[[], int] | None = None
    """What budget "device" means, in bytes."""
    saved: Plan | None = None
    """A plan to run instead of planning."""
    measuring: Callable[[int, int, int], None] | None = None
    solving: Callable[[Progress], None] | None = None
    learnt: int = 0
    """Bytes by which measured steps exceeded their simulation."""
    plans: list[Plan] = field(default_factory=list)

    def partition(
        self, joint: fx.GraphModule, num_forward_outputs: int, static_inputs: Sequence[int]
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = prepare(joint, num_forward_outputs)
        captured = convert(joint, num_forward_outputs, static_inputs)
        check_graph(captured.graph)
        rules = DEFAULT_RULES if self.options.rules is None else self.options.rules
        graph = self.with_held(add_makers(captured.graph, rules, self.options.allow))
        if self.saved is not None:
            check_match(self.saved.graph, graph)
            program = self.saved.program
        else:
            program = self.plan(captured, graph)
        return lower(captured, graph, program, num_forward_outputs)

    def with_held(self, graph: Graph) -> Graph:
        """What exists besides the graph's own inputs: other parameters, optimizer state, the rest of the batch."""
        inside: dict[str, int] = {}
        for outside in graph.outside:
            value = graph.value[graph.storage(outside.value)]
            if outside.owned:
                inside[value.kind] = inside.get(value.kind, 0) + value.bytes
        held = {kind: size - inside.get(kind, 0) for kind, size in self.held().items()}
        return replace(graph, held={k: v for k, v in held.items() if v > 0})

    def plan(self, captured: Captured, graph: Graph) -> Program:
        graph = price(captured, graph, self.store, self.measuring)
        before = simulate(graph, unplanned(graph))
        budget = self.budget_bytes(before.peak)
        target = budget - self.learnt - (int(budget * _RESERVE) if before.peak > budget else 0)
        result = solve(
            graph,
            target,
            solver=self.options.solver,
            seconds=self.options.seconds,
            report=self.solving,
        )
        if result.status is Status.INFEASIBLE:
            raise budget_error(graph, result.program, budget, before.peak)
        plan = plan_of(
            graph, budget, result, allow=self.options.allow, environment=self.environment
        )
        self.plans.append(plan)
        log.info("%s", plan)
        return result.program

    def budget_bytes(self, unplanned_peak: int) -> int:
        budget = self.options.budget
        if budget.bytes is not None:
            return budget.bytes
        if budget.device:
            assert self.free_bytes is not None
            return self.free_bytes()
        return int(unplanned_peak * (budget.fraction or 1.0))


def optimizer_kind() -> str:
    return Kind.OPTIMIZER
