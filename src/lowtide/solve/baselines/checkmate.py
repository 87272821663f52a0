"""What if everything is recomputed or kept as a 0-1 program says? Checkmate.

Follows Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization" (MLSys 2020), section 4. The
captured ops, in their order, are the nodes 1..n, and there are n stages; stage t computes node t for the first time and may
compute any node before it once more (their frontier-advancing stages). With

    R[t,i]       node i is computed in stage t
    S[t,x]       storage x is kept from stage t-1 into stage t
    FREE[t,x,k]  storage x is freed in stage t right after node k

it asks for the least sum of seconds over R, such that what a node reads is computed before it in the stage or kept into it, what
is kept was there in the stage before, and the bytes U[t,k] while node k runs in stage t, counted from node to node, are within the
budget. Solved by HiGHS, where they used Gurobi, for small graphs: the program grows with the square of the step.

How it is written here, and where it deviates, each to be as strong as its idea:
- Their nodes make one tensor each. Here a node may make several storages: it has one R, each storage its own S and FREE.
- A storage is freed only if it is not kept, not read later in the stage, and its reader runs. They count such hazards in two
  rows with a big factor; here each hazard is a row of its own. The 0-1 solutions are the same, the relaxation is tighter.
- They ignore workspaces; here a node's workspace counts while it runs.
- What arrives from outside is a node that is computed only once, and what the caller gets is read by a node at the end of its
  segment and kept as long as the caller holds it. What may not run again (random ops, effects) is computed only once.
- Where nothing fits, they have no answer; here it is the solution with the smallest peak.

It knows no ops of rules: one maker for each tensor, in the captured order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program, unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.baselines.zero_one import ONE, ZERO, Bytes, Terms, ZeroOne
from lowtide.solve.problem import Problem, make_problem

__all__ = ["checkmate"]


@dataclass(frozen=True)
class _Node:
    segment: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    name: str = ""
    """Of its op; empty for what arrives and what is returned."""
    seconds: float = 0.0
    workspace: int = 0
    again: frozenset[int] = frozenset()
    """Segments in which it may be computed once more."""


def checkmate(graph: Graph, budget: int) -> Program:
    problem = make_problem(graph)
    model = _Model(problem, _nodes(problem), budget)
    ones = model.program.solve(model.costs(), model.bytes.room)
    steps: list[list[str]] = [[] for _ in graph.segments]
    for stage, node in enumerate(model.nodes):
        computed = [i for i in range(stage + 1) if ones[model.computed(stage, i)]]
        steps[node.segment] += [model.nodes[i].name for i in computed if model.nodes[i].name]
    return Program(tuple(map(tuple, steps)))


def _nodes(problem: Problem) -> list[_Node]:
    graph = problem.graph
    nodes: list[_Node] = []
    for segment, names in enumerate(simulate(graph, unplanned(graph)).program.steps):
        nodes.append(_Node(segment, (), tuple(problem.arrives[segment].tolist())))
        for name in names:
            number = problem.op_index[name]
            again = [s for s in range(len(graph.segments)) if problem.again[number, s]]
            nodes.append(
                _Node(
                    segment,
                    tuple(problem.reads[number].tolist()),
                    tuple(problem.makes[number].tolist()),
                    name,
                    float(problem.seconds[number]),
                    int(problem.workspace[number]),
                    frozenset(again),
                )
            )
        returned = (graph.storage(r.value) for r in graph.required if r.segment == segment)
        read = [problem.storage_index[s] for s in returned if s in problem.storage_index]
        nodes.append(_Node(segment, tuple(dict.fromkeys(read)), ()))
    return [n for n in nodes if n.name or n.reads or n.makes]


class _Model:
    def __init__(self, problem: Problem, nodes: list[_Node], budget: int) -> None:
        self.problem, self.nodes = problem, nodes
        sizes = problem.bytes.tolist()
        self.bytes = Bytes([*sizes, *(n.workspace for n in nodes)], budget - problem.base_bytes)
        self.size = [self.bytes(size) for size in sizes]
        self.maker = {s: i for i, node in enumerate(nodes) for s in node.makes}
        self.program = ZeroOne("Checkmate")
        self.recomputed: dict[tuple[int, int], int] = {}
        self.keeps: dict[tuple[int, int], int] = {}
        for stage, here in enumerate(nodes):
            for i in range(stage):
                if here.segment in nodes[i].again and nodes[i].makes:
                    self.recomputed[stage, i] = self.program.variable()
            for storage, made in self.maker.items():
                if made < stage and self.may_keep(storage, stage):
                    self.keeps[stage, storage] = self.program.variable()
        self.link()
        for stage in range(len(nodes)):
            self.weigh(stage)

    def computed(self, stage: int, node: int) -> int:
        """R"""
        return ONE if stage == node else self.recomputed.get((stage, node), ZERO)

    def kept(self, stage: int, storage: int) -> int:
        """S"""
        return self.keeps.get((stage, storage), ZERO)

    def costs(self) -> Terms:
        return [(v, self.nodes[i].seconds) for (_, i), v in self.recomputed.items()]

    @cached_property
    def callers(self) -> dict[int, list[tuple[int, int]]]:
        """For each storage the caller gets, the segments it gets and lets go of it in."""
        found: dict[int, list[tuple[int, int]]] = {}
        for required in self.problem.graph.required:
            storage = self.problem.storage_index.get(self.problem.graph.storage(required.value))
            if storage is not None:
                found.setdefault(storage, []).append((required.segment, required.until))
        return found

    def is_held(self, storage: int, stage: int) -> bool:
        segment = self.nodes[stage].segment
        return any(got < segment <= until for got, until in self.callers.get(storage, ()))

    def may_keep(self, storage: int, stage: int) -> bool:
        """A mark of the user's forbids that it crosses from one segment into the next."""
        marked = not self.problem.graph.value[self.problem.storage_names[storage]].keep
        crosses = self.nodes[stage - 1].segment < self.nodes[stage].segment
        return not (marked and crosses) or self.is_held(storage, stage)

    def link(self) -> None:
        """What is read is there; what is kept was there."""
        for (stage, storage), variable in self.keeps.items():
            before = self.computed(stage - 1, self.maker[storage])
            terms = [(variable, 1.0), (before, -1.0), (self.kept(stage - 1, storage), -1.0)]
            self.program.at_most(terms)
            if self.is_held(storage, stage):
                self.program.at_most([(variable, -1.0)], -1.0)
        for stage in range(len(self.nodes)):
            for i in range(stage + 1):
                for storage in self.nodes[i].reads:
                    made = self.computed(stage, self.maker[storage])
                    there = [(made, -1.0), (self.kept(stage, storage), -1.0)]
                    self.program.at_most([(self.computed(stage, i), 1.0), *there])

    def weigh(self, stage: int) -> None:
        """The bytes while each node runs: what was kept, plus what was made, less what was freed."""
        now: Terms = [
            (self.kept(stage, s), self.size[s]) for s, made in self.maker.items() if made < stage
        ]
        for i in range(stage + 1):
            runs, node = self.computed(stage, i), self.nodes[i]
            if runs == ZERO:
                continue
            now += [(runs, self.size[s]) for s in node.makes]
            used = self.program.amount()
            self.program.exactly([*now, (used, -1.0)], 0.0)
            self.program.within_peak([(used, 1.0), (runs, self.bytes(node.workspace))])
            now = [(used, 1.0), *self.freed(stage, i)]

    def freed(self, stage: int, node: int) -> Terms:
        found: Terms = []
        for storage in {*self.nodes[node].reads, *self.nodes[node].makes}:
            later = [
                self.computed(stage, j)
                for j in range(node + 1, stage + 1)
                if storage in self.nodes[j].reads
            ]
            if ONE in later or not self.size[storage]:
                continue
            free = self.program.variable(whole=False)
            self.program.at_most([(free, 1.0), (self.computed(stage, node), -1.0)])
            for hazard in (*later, self.kept(stage + 1, storage)):
                if hazard != ZERO:
                    self.program.at_most([(free, 1.0), (hazard, 1.0)], 1.0)
            found.append((free, -self.size[storage]))
        return found
