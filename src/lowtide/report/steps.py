"""What is allocated when, in one step? Simulated and observed steps in one form: blocks of memory that come and go.

Goes in: a `Timeline` of the simulator or a `Profile`. Comes out: a `Step`. At every moment the blocks that live add up to what the
simulator, or the allocator, says is allocated.

A block has one kind for all its life: what a later segment still reads is an activation *kept* from the moment it is made, so that a
picture of forward shows what is piled up for backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.ir.graph import Graph, Kind
from lowtide.plan.profile import ENCODED, Block, Profile
from lowtide.sim.memory import Copy, Timeline
from lowtide.sim.timeline import KEPT, WORKSPACE, base_of

__all__ = ["Running", "Step", "aligned", "observed", "only_rules_make", "simulated", "spans"]

_KEPT_KINDS = (Kind.ACTIVATION, Kind.TEMPORARY, Kind.OTHER)
_LEAST = 1e-8
"""Share of the step that an op without a price takes, so that what it holds can be seen."""


class Running(NamedTuple):
    """An op, from when it runs."""

    start: float
    op: str
    layer: str
    source: str


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float
    peak: int
    blocks: tuple[Block, ...]
    phases: tuple[tuple[str, float], ...]
    """Names, and the seconds at which they begin."""
    running: tuple[Running, ...]
    """In the order of time."""
    timed: bool = True
    """False where no op has a price: then a second stands for an op."""


def observed(profile: Profile, name: str = "observed") -> Step:
    started = sorted(profile.blocks, key=lambda block: block.start)
    running = tuple(Running(b.start, b.op, b.layer, b.source) for b in started if b.op)
    return Step(name, profile.seconds, profile.peak, profile.blocks, profile.phases, running)


def simulated(timeline: Timeline, name: str) -> Step:
    graph = timeline.graph
    clock = _Clock(timeline)
    blocks = [
        *(Block(n, 0.0, clock.seconds, *where) for where, n in base_of(graph).items()),
        *_copies(timeline, clock),
        *_workspaces(timeline, clock),
    ]
    return Step(
        name,
        clock.seconds,
        timeline.peak,
        tuple(b for b in blocks if b.bytes and b.end > b.start),
        _phases(graph, clock),
        tuple(_running(timeline, clock)),
        timed=clock.timed,
    )


def aligned(profile: Profile, step: Step) -> tuple[tuple[float, int], ...]:
    """The observed bytes over the time of another step: each phase is stretched to that step's, since observing takes time of its own.
    From where the two steps' phases differ, nothing is shown."""
    found: list[tuple[float, int]] = []
    ours, theirs = spans(profile.phases, profile.seconds), spans(step.phases, step.seconds)
    for (name, start, end), (other, first, last) in zip(ours, theirs):
        if name != other or end <= start:
            break
        scale = (last - first) / (end - start)
        within = ((t, size) for t, size in profile.points if start <= t < end)
        found += [(first + scale * (t - start), size) for t, size in within]
    return (*found, (step.seconds, found[-1][1])) if found else ()


def spans(phases: Sequence[tuple[str, float]], end: float) -> list[tuple[str, float, float]]:
    """Each phase with the seconds it lasts from and to."""
    ends = [*(start for _, start in phases[1:]), end]
    return [(name, start, last) for (name, start), last in zip(phases, ends)]


class _Clock:
    """When does each slot of the simulator begin and end? Starts and ends of segments take no time."""

    def __init__(self, timeline: Timeline) -> None:
        op = timeline.graph.op
        whole = sum(op[name].seconds for _, name in timeline.program)
        self.timed = whole > 0
        self.begin: list[float] = []
        self.end: list[float] = []
        self.segments: list[float] = []
        self.seconds = 0.0
        for names in timeline.program.steps:
            self.segments.append(self.seconds)
            self.add(0.0)
            for name in names:
                self.add(max(op[name].seconds, _LEAST * whole) if self.timed else 1.0)
            self.add(0.0)

    def add(self, seconds: float) -> None:
        self.begin.append(self.seconds)
        self.seconds += seconds
        self.end.append(self.seconds)


def _copies(timeline: Timeline, clock: _Clock) -> Iterator[Block]:
    graph = timeline.graph
    ends = _segment_ends(timeline)
    makers = {output: op for op in reversed(graph.ops) for output in op.outputs if not op.rule}
    for copy in timeline.copies:
        value = graph.value[copy.storage]
        maker = makers.get(copy.storage)
        yield Block(
            value.bytes,
            clock.begin[copy.born],
            clock.end[copy.last],
            _kind(graph, copy, crosses=copy.last > ends[copy.segment]),
            value.layer,
            maker.target if maker else "",
            maker.source if maker else "",
        )


def _segment_ends(timeline: Timeline) -> list[int]:
    ends, slot = [], -1
    for names in timeline.program.steps:
        slot += len(names) + 2
        ends.append(slot)
    return ends


def _kind(graph: Graph, copy: Copy, *, crosses: bool) -> str:
    kind = graph.value[copy.storage].kind
    if not crosses or kind not in _KEPT_KINDS or copy.storage in graph.exists_outside:
        return kind.value
    return ENCODED if only_rules_make(graph, copy.storage) else KEPT


def only_rules_make(graph: Graph, storage: str) -> bool:
    """It is not of the captured step: an encoded form, or a note that a rule keeps instead of a tensor."""
    makers = graph.makers[storage]
    return bool(makers) and all(op.rule for op in makers)


def _workspaces(timeline: Timeline, clock: _Clock) -> Iterator[Block]:
    for index, moment in enumerate(timeline.moments):
        op, slot = timeline.graph.op[moment.op], timeline.slot(index)
        begin, end = clock.begin[slot], clock.end[slot]
        yield Block(op.workspace, begin, end, WORKSPACE, op.layer, op.target, op.source)


def _running(timeline: Timeline, clock: _Clock) -> Iterator[Running]:
    for index, moment in enumerate(timeline.moments):
        op = timeline.graph.op[moment.op]
        yield Running(clock.begin[timeline.slot(index)], op.target, op.layer, op.source)


def _phases(graph: Graph, clock: _Clock) -> tuple[tuple[str, float], ...]:
    """Segments, those of one name in a row as one."""
    found: list[tuple[str, float]] = []
    for segment, start in zip(graph.segments, clock.segments):
        if not found or found[-1][0] != segment.name:
            found.append((segment.name, start))
    return tuple(found)
