"""From what can each storage be made again, once its segment is over?

Goes in: a `Graph`. Comes out: a `Remaking`: for each segment, the maker that classic methods would run to get back a
storage of an earlier segment, and an order in which such makers may run. It says nothing about what to keep, so one
`Remaking` serves every choice of what to keep (`keeping.py`).

With one maker for each value the answer would be "the captured op". With several it has to be well-founded: an
inversion makes `x` from `y`, the captured op makes `y` from `x`, and choosing both gets nobody anywhere. So makers are
settled one by one, each only when everything it reads is settled: first captured makers and the makers of what no
captured op may make again (a random op's replay), both in captured order; where that ends, the other makers; and where
that ends too, one more storage is declared impossible to remake, so that it is always kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

from lowtide.ir.graph import Graph, Op, Outside, Required, home_segment
from lowtide.ir.program import Program, unplanned
from lowtide.ir.storages import Folded, fold

__all__ = ["Remaking", "Ways", "remaking"]

_FIRST, _SECOND, _KEPT = range(3)


@dataclass(frozen=True)
class Ways:
    """How storages of earlier segments come back in one segment. Those not named here are there without help."""

    maker: dict[str, str]
    """The op that makes a storage again."""
    rank: dict[str, int]
    """An order in which these ops may run: each after the makers of what it reads."""
    lost: frozenset[str]
    """Storages that may not be kept and cannot be remade."""


@dataclass(frozen=True)
class Remaking:
    graph: Graph
    folded: Folded
    captured: Program
    """The captured ops, without those of backward whose results nobody reads."""
    made: dict[str, int]
    """The segment in which the captured program makes each storage."""
    ways: tuple[Ways, ...]
    """For each segment."""

    @cached_property
    def droppable(self) -> frozenset[str]:
        """Storages that need not be kept: some later segment can remake them."""
        return frozenset(s for ways in self.ways for s in ways.maker if s in self.made)

    @cached_property
    def read_again(self) -> frozenset[str]:
        """Droppable storages that captured ops of a later segment read."""
        reads = self.folded.reads
        return frozenset(
            s
            for segment, name in self.captured
            for s in reads[name]
            if s in self.ways[segment].maker
        )


def remaking(graph: Graph) -> Remaking:
    folded = fold(graph)
    captured = _without_dead_tails(graph, folded)
    made: dict[str, int] = {}
    for segment, name in captured:
        for storage in folded.makes[name]:
            made.setdefault(storage, segment)
    facts = _Facts(graph, folded, made)
    ways = tuple(_Settling(facts, segment).run() for segment in range(len(graph.segments)))
    return Remaking(graph, folded, captured, made, ways)


def _without_dead_tails(graph: Graph, folded: Folded) -> Program:
    """The simulator does not run a dead op; nor may it be a reason to remake what it reads, earlier than others want it.

    Only in the last segment of a piece: what is dead in an earlier one (a generator's state) may serve a replay.
    """
    last = {s.piece: segment for segment, s in enumerate(graph.segments)}
    live = {graph.storage(r.value) for r in graph.required}
    steps: list[tuple[str, ...]] = []
    for segment, names in reversed(list(enumerate(unplanned(graph).steps))):
        tail = last[graph.segments[segment].piece] == segment
        listed: list[str] = []
        for name in reversed(names):
            if not (tail and live.isdisjoint(folded.makes[name]) and not graph.op[name].effect):
                live.update(folded.reads[name])
                listed.append(name)
        steps.append(tuple(reversed(listed)))
    return Program(tuple(reversed(steps)))


@dataclass(frozen=True)
class _Facts:
    """What is the same for all segments."""

    graph: Graph
    folded: Folded
    made: dict[str, int]

    @cached_property
    def place(self) -> dict[str, int]:
        return {o.name: i for i, o in enumerate(self.folded.ops)}

    @cached_property
    def pieces(self) -> dict[int, list[Op]]:
        """The ops that may run again, by the piece they belong to."""
        found: dict[int, list[Op]] = {s.piece: [] for s in self.graph.segments}
        for op in self.folded.ops:
            if op.rerun and not op.effect:
                found[self.graph.segments[op.segment].piece].append(op)
        return found

    @cached_property
    def outside(self) -> dict[str, Outside]:
        return {self.graph.storage(o.value): o for o in self.graph.outside}

    @cached_property
    def held(self) -> dict[str, list[Required]]:
        found: dict[str, list[Required]] = {}
        for required in self.graph.required:
            found.setdefault(self.graph.storage(required.value), []).append(required)
        return found

    @cached_property
    def marked(self) -> list[str]:
        return [s for s in self.made if not self.graph.value[s].keep]


class _Settling:
    """The search for one segment's ways: what is settled so far, and what waits for it."""

    def __init__(self, facts: _Facts, segment: int) -> None:
        self.facts, self.segment = facts, segment
        self.graph, self.reads, self.makes = facts.graph, facts.folded.reads, facts.folded.makes
        piece = facts.pieces[facts.graph.segments[segment].piece]
        self.makers = [o for o in piece if self.may_remake(o)]
        self.makeable = {s for o in self.makers for s in self.makes[o.name]}
        self.by_captured = {s for o in self.makers if not o.rule for s in self.makes[o.name]}
        self.maker: dict[str, str] = {}
        self.rank: dict[str, int] = {}
        self.settled: set[str] = set()

    def may_remake(self, op: Op) -> bool:
        """Captured ops of this very segment run in their place; they are nobody's second maker."""
        earlier = op.segment < self.segment or (bool(op.rule) and self.segment > 0)
        return earlier and home_segment(self.graph, op, self.segment)

    def run(self) -> Ways:
        missing = {o.name: self.unsettled(self.reads[o.name]) for o in self.makers}
        waiting: defaultdict[str, list[Op]] = defaultdict(list)
        for op in self.makers:
            for storage in missing[op.name]:
                waiting[storage].append(op)
        queue = [self.entry(o) for o in self.makers if not missing[o.name]]
        queue += self.last_resorts()
        heapify(queue)
        while queue:
            for storage in self.settle(*heappop(queue)):
                for op in waiting[storage]:
                    missing[op.name].remove(storage)
                    if not missing[op.name]:
                        heappush(queue, self.entry(op))
        earlier = (s for s in self.facts.marked if self.is_earlier(s))
        return Ways(self.maker, self.rank, frozenset(self.unsettled(earlier)))

    def unsettled(self, storages: Iterable[str]) -> list[str]:
        return [s for s in storages if s not in self.settled and not self.is_there(s)]

    def is_there(self, storage: str) -> bool:
        """Whatever a plan keeps: from outside, in the caller's hands, or kept because it cannot be remade."""
        outside = self.facts.outside.get(storage)
        if outside is not None:
            return outside.since <= self.segment <= outside.until
        held = self.facts.held.get(storage, ())
        if any(r.segment < self.segment <= r.until for r in held):
            return True
        return storage not in self.makeable and self.is_earlier(storage) and self.may_keep(storage)

    def is_earlier(self, storage: str) -> bool:
        return self.facts.made.get(storage, self.segment) < self.segment

    def may_keep(self, storage: str) -> bool:
        return self.graph.value[storage].keep

    def entry(self, op: Op) -> tuple[int, int, str]:
        """Its turn: the captured maker first, another maker in the place of the op it stands in for."""
        place = self.facts.place
        only_way = any(s not in self.by_captured for s in self.makes[op.name])
        turn = _FIRST if not op.rule or only_way else _SECOND
        return (turn, place[op.of if op.of in place else op.name], op.name)

    def last_resorts(self) -> list[tuple[int, int, str]]:
        earlier = [s for s in self.makeable if self.is_earlier(s) and self.may_keep(s)]
        return [(_KEPT, self.facts.place[self.graph.makers[s][0].name], s) for s in earlier]

    def settle(self, turn: int, place: int, name: str) -> list[str]:
        """What this maker (or, in the last turn, keeping this storage) makes available."""
        new = self.unsettled((name,) if turn == _KEPT else self.makes[name])
        if new and turn != _KEPT:
            self.maker.update(dict.fromkeys(new, name))
            self.rank[name] = len(self.rank)
        self.settled.update(new)
        return new
