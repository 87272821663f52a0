"""What would a profile of this graph look like? From the simulator, for a step that nobody has run.

Goes in: a graph with costs. Comes out: a `Profile` of the step as captured, marked as estimated: the same blocks that an observed step
has, as far as a graph knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lowtide.ir.graph import Graph, Kind, Value
from lowtide.ir.program import unplanned
from lowtide.plan.profile import Block, Profile
from lowtide.sim.memory import Copy, Timeline, simulate
from lowtide.sim.timeline import KEPT, WORKSPACE

__all__ = ["estimated_profile"]


def estimated_profile(graph: Graph, model: str, environment: Mapping[str, str]) -> Profile:
    timeline = simulate(graph, unplanned(graph))
    clock = _Clock(timeline)
    return Profile(
        model=model,
        seconds=clock.end,
        peak=timeline.peak,
        blocks=(*_base(graph, clock.end), *_copies(timeline, clock), *_workspaces(timeline, clock)),
        phases=tuple((s.name, clock.first(i)) for i, s in enumerate(graph.segments)),
        graph=graph,
        peaks=(timeline.peak,),
        estimated=True,
        environment=environment,
    )


class _Clock:
    """When each slot of a timeline begins, and when the last one ends."""

    def __init__(self, timeline: Timeline) -> None:
        self.starts: list[float] = []
        self.segments: list[int] = []
        """The first slot of each segment."""
        now = 0.0
        for names in timeline.program.steps:
            self.segments.append(len(self.starts))
            self.starts.append(now)
            for name in names:
                self.starts.append(now)
                now += timeline.graph.op[name].seconds
            self.starts.append(now)
        self.starts.append(now)
        # As exactly as a file says it.
        self.starts = [round(time, 9) for time in self.starts]
        self.end = self.starts[-1]

    def first(self, segment: int) -> float:
        return self.starts[self.segments[segment]]

    def span(self, born: int, last: int) -> tuple[float, float]:
        return self.starts[born], self.starts[min(last + 1, len(self.starts) - 1)]


def _base(graph: Graph, end: float) -> Iterator[Block]:
    for kind, size in graph.held.items():
        yield Block(size, 0.0, end, str(kind), "")
    for name in dict.fromkeys(graph.storage(o.value) for o in graph.outside if o.owned):
        value = graph.value[name]
        readers = graph.users[name] if value.kind is not Kind.BATCH else ()
        layer = value.layer or next((op.layer for op in readers), "")
        yield Block(value.bytes, 0.0, end, value.kind.value, layer)


def _copies(timeline: Timeline, clock: _Clock) -> Iterator[Block]:
    graph = timeline.graph
    for copy in timeline.copies:
        value = graph.value[copy.storage]
        start, end = clock.span(copy.born, copy.last)
        maker = next(iter(graph.makers[copy.storage]), None)
        block = Block(value.bytes, start, end, _kind(graph, clock, copy, value), value.layer)
        if value.bytes and maker is not None:
            yield replace(block, op=_op(maker.target), source=maker.source)
        elif value.bytes:
            yield block


def _kind(graph: Graph, clock: _Clock, copy: Copy, value: Value) -> str:
    if value.kind not in (Kind.ACTIVATION, Kind.TEMPORARY):
        return value.kind.value
    following = copy.segment + 1
    crosses = following < len(clock.segments) and copy.last >= clock.segments[following]
    return KEPT if crosses else Kind.TEMPORARY.value


def _workspaces(timeline: Timeline, clock: _Clock) -> Iterator[Block]:
    for index, moment in enumerate(timeline.moments):
        op = timeline.graph.op[moment.op]
        if op.workspace:
            slot = timeline.slot(index)
            start, end = clock.span(slot, slot)
            yield Block(op.workspace, start, end, WORKSPACE, op.layer, _op(op.target), op.source)


def _op(target: str) -> str:
    """Without the overload: `aten.convolution`."""
    return ".".join(target.split(".")[:2])
