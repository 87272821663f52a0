"""How many bytes and seconds does a program take? The only authority on both.

Goes in: a `Graph` and a `Program`. Comes out: a `Timeline`, one `Moment` per op that runs. Everybody who claims a
peak, planners and reports alike, asks here; what is said here is checked against the allocator on real steps.

The rules, all of them:
- The base is what the caller holds all step long: parameters, buffers, optimizer state, the batch.
- While an op runs, its inputs, its outputs and its workspace exist, besides all storages that are read later.
- A storage goes right after its last reader. Outputs nobody reads go right after the op that made them.
- An op that may write over an input does so where that input's copy is not read any more: then the two are never there at once.
- An op that runs again makes a new copy. Later readers read the newest copy, so an older one goes after its last
  reader.
- An op none of whose outputs is read later, and that has no effect, does not run.
- Of a required value the caller holds the copy that is there at the end of its segment, until it lets go; a copy
  made after that exists beside it.

One walk from the end to the start finds the ops that need not run. One walk from the start to the end finds when
each copy comes and goes; the bytes are sums over those. A step is counted in slots: each segment has one for its
start, one for each op that runs in it, and one for its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.ir.storages import Folded, fold

__all__ = ["Copy", "Moment", "Timeline", "simulate", "written_over"]


@dataclass(frozen=True, slots=True)
class Moment:
    """One op as it runs."""

    segment: int
    op: str
    during: int
    """Bytes allocated while it runs, base included."""
    after: int
    """Bytes allocated once it is done and what it read last is gone."""


class Copy(NamedTuple):
    """One copy of a storage: it exists in all slots from `born` to `last`."""

    storage: str
    segment: int
    """The segment it was made, or arrived, in."""
    born: int
    last: int


@dataclass(frozen=True)
class Timeline:
    graph: Graph
    program: Program
    """What really runs: the program without its dead ops."""
    moments: tuple[Moment, ...]
    base: int
    arrivals: tuple[int, ...]
    """Bytes allocated at the start of each segment, newly arrived values included."""
    kept: tuple[frozenset[str], ...]
    """For each segment the storages that exist at its end and are read or held after it."""
    seconds: float

    @cached_property
    def peak(self) -> int:
        return max([m.during for m in self.moments] + [self.base, *self.arrivals])

    @cached_property
    def points(self) -> tuple[tuple[float, int], ...]:
        """Bytes over time: from these seconds on so many are allocated."""
        found: list[tuple[float, int]] = []
        now = 0.0
        for moment in self.moments:
            found.append((now, moment.during))
            now += self.graph.op[moment.op].seconds
        return (*found, (now, self.moments[-1].after)) if found else ()

    @cached_property
    def peak_moment(self) -> int:
        """Index of the moment with the most bytes."""
        return max(range(len(self.moments)), key=lambda i: self.moments[i].during, default=-1)

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """Every copy that comes and goes, in the order they come; the base left out."""
        walk = _Walk(self.graph, fold(self.graph), self.program)
        return tuple(map(Copy, walk.storage, walk.segment, walk.born, walk.last))

    def slot(self, moment: int) -> int:
        """Before a moment of segment n come the starts of n + 1 segments and the ends of n."""
        if not 0 <= moment < len(self.moments):
            raise IndexError(f"moment {moment} of {len(self.moments)}")
        return moment + 2 * self.moments[moment].segment + 1

    def alive(self, moment: int) -> dict[str, int]:
        """Storages that exist while this moment's op runs, with their bytes; the base left out."""
        slot = self.slot(moment)
        found: dict[str, int] = {}
        for copy in self.copies:
            if copy.born <= slot <= copy.last:
                size = self.graph.value[copy.storage].bytes
                found[copy.storage] = found.get(copy.storage, 0) + size
        return dict(sorted(found.items()))


def simulate(graph: Graph, program: Program) -> Timeline:
    folded = fold(graph)
    base = sum(graph.held.values()) + sum(folded.bytes[s] for s in folded.owned)
    ran = _without_dead_ops(graph, folded, program)
    walk = _Walk(graph, folded, ran)
    during, after = walk.bytes(base)
    moments: list[Moment] = []
    arrivals: list[int] = []
    start = 0
    for segment, names in enumerate(ran.steps):
        arrivals.append(during[start])
        for slot, name in enumerate(names, start + 1):
            busy = during[slot] + graph.op[name].workspace
            moments.append(Moment(segment, name, busy, after[slot]))
        start = walk.ends[segment] + 1
    seconds = sum(graph.op[name].seconds for _, name in ran)
    return Timeline(graph, ran, tuple(moments), base, tuple(arrivals), walk.kept(), seconds)


def written_over(graph: Graph, program: Program) -> list[list[str]]:
    """For each op of each segment the storage that its output is written over, or none. Without dead ops, as `Timeline.program` is."""
    walk = _Walk(graph, fold(graph), program)
    starts = [0, *(end + 1 for end in walk.ends)]
    return [
        [walk.over.get(slot, "") for slot in range(start + 1, start + 1 + len(names))]
        for start, names in zip(starts, program.steps)
    ]


def _callers(graph: Graph, segment: int) -> frozenset[str]:
    """Storages in the base that may be read in this segment. A buffer that forward overwrites weighs the same in
    backward, but what forward read is no longer in it."""
    return frozenset(
        graph.storage(o.value) for o in graph.outside if o.owned and o.since <= segment <= o.until
    )


def _without_dead_ops(graph: Graph, folded: Folded, program: Program) -> Program:
    makes, reads, op = folded.makes, folded.reads, graph.op
    steps: list[tuple[str, ...]] = []
    live: set[str] = set()
    for segment in reversed(range(len(graph.segments))):
        callers = _callers(graph, segment)
        live.update(graph.storage(r.value) for r in graph.required if r.segment == segment)
        live -= callers
        names: list[str] = []
        for name in reversed(program.steps[segment]):
            if live.isdisjoint(makes[name]) and not op[name].effect:
                continue
            names.append(name)
            live.difference_update(makes[name])
            live.update([s for s in reads[name] if s not in callers])
        live.difference_update(s for s, since in folded.arrives.items() if since == segment)
        steps.append(tuple(reversed(names)))
    return Program(tuple(reversed(steps)))


class _Walk:
    """The walk from the start to the end: which copies come and go when. Copies are columns, for speed."""

    def __init__(self, graph: Graph, folded: Folded, program: Program) -> None:
        self.graph, self.folded = graph, folded
        self.storage: list[str] = []
        self.segment: list[int] = []
        self.born: list[int] = []
        self.last: list[int] = []
        self.ends: list[int] = []
        """The slot of each segment's end."""
        self.newest: dict[str, int] = {}
        self.held: list[tuple[int, int]] = []
        """Copies the caller holds, with the segment at whose end it lets go."""
        self.may: list[tuple[int, list[int]]] = []
        """For the slot of an op that may write over inputs, their copies."""
        self.over: dict[int, str] = {}
        """For the slot of an op that does, the storage."""
        for segment, names in enumerate(program.steps):
            start = self.ends[-1] + 1 if self.ends else 0
            self.run_segment(segment, names, start)
            self.ends.append(start + len(names) + 1)
        for copy, until in self.held:
            self.last[copy] = max(self.last[copy], self.ends[min(until, len(self.ends) - 1)])
        for slot, copies in self.may:
            gone = next((c for c in copies if self.last[c] == slot), None)
            if gone is not None:
                self.last[gone] = slot - 1
                self.over[slot] = self.storage[gone]

    def run_segment(self, segment: int, names: tuple[str, ...], start: int) -> None:
        callers = _callers(self.graph, segment)
        for storage, since in self.folded.arrives.items():
            if since == segment:
                self.newest[storage] = self.make(storage, segment, start)
        self.run_ops(segment, names, start + 1, callers)
        for required in self.graph.required:
            storage = self.graph.storage(required.value)
            if required.segment == segment and storage not in callers:
                if storage not in self.newest:
                    raise self.missing(storage, "is required at the end of", segment)
                self.held.append((self.newest[storage], required.until))

    def run_ops(
        self, segment: int, names: tuple[str, ...], start: int, callers: frozenset[str]
    ) -> None:
        makes, reads, op = self.folded.makes, self.folded.reads, self.graph.op
        newest, last = self.newest, self.last
        for slot, name in enumerate(names, start):
            for storage in reads[name]:
                if storage in callers:
                    continue
                if storage not in newest:
                    raise self.missing(storage, f"is read by %{name} in", segment)
                last[newest[storage]] = slot
            if op[name].over:
                self.may.append((slot, [newest[s] for s in op[name].over]))
            for storage in makes[name]:
                copy = self.make(storage, segment, slot)
                if storage not in callers:
                    newest[storage] = copy

    def make(self, storage: str, segment: int, slot: int) -> int:
        self.storage.append(storage)
        self.segment.append(segment)
        self.born.append(slot)
        self.last.append(slot)
        return len(self.last) - 1

    def missing(self, storage: str, why: str, segment: int) -> GraphError:
        where = self.graph.segments[segment].name
        return GraphError(
            f"storage %{storage} {why} segment {segment} ({where}) and does not exist there"
        )

    def bytes(self, base: int) -> tuple[list[int], list[int]]:
        """For each slot the bytes of all copies that exist in it, and of those that outlast it; workspaces left out."""
        size = self.folded.bytes
        come, go = [0] * (self.ends[-1] + 1), [0] * (self.ends[-1] + 1)
        for storage, born, last in zip(self.storage, self.born, self.last):
            come[born] += size[storage]
            go[last] += size[storage]
        during, after = [], []
        now = base
        for more, less in zip(come, go):
            during.append(now + more)
            now += more - less
            after.append(now)
        for slot, storage in self.over.items():
            after[slot - 1] += size[storage]  # until the next op begins, it is still there
        return during, after

    def kept(self) -> tuple[frozenset[str], ...]:
        kept: list[set[str]] = [set() for _ in self.ends]
        for storage, segment, last in zip(self.storage, self.segment, self.last):
            while last > self.ends[segment]:
                kept[segment].add(storage)
                segment += 1
        return tuple(frozenset(k) for k in kept)
