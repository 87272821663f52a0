"""What happened from one quiet moment of a training script to the next? Which graphs ran, in what order, and what the code between them took.

A *round* begins with the call of a trained module while no forward waits for its backward, and ends at the next such moment. A plain step is one round;
so is each micro-step of gradient accumulation, and a whole turn of two models that train against each other. Rounds share nothing but what
is held all the time, so each kind of round is planned by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowtide.execute.pieces import FOREVER, Run, home_of, merge
from lowtide.execute.survey import Piece, Survey, _Seen
from lowtide.ir.graph import Graph
from lowtide.ir.json import graph_hash
from lowtide.ir.program import Program
from lowtide.measure.meter import Meter
from lowtide.sim.memory import Timeline, simulate

__all__ = ["Extras", "OrderedSurvey", "Round", "extras", "forward_only", "round_graph"]

FORWARD, BACKWARD = 0, 1


class OrderedSurvey(Survey):
    """A survey that also notes the order of segments, whatever it is, and marks the meter where each begins and ends."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter
        self.order: list[tuple[_Seen, int]] = []
        self.there: list[frozenset[int]] = []
        """For each segment what was alive when it began."""
        self.given: list[frozenset[int]] = []
        """For each segment what it read."""

    def forward_begins(self, piece: Piece, args: Sequence[Any]) -> None:
        self.meter.mark()
        super().forward_begins(piece, args)
        self.begins(self.seen[-1], FORWARD, frozenset(self.all_keys(args)))

    def forward_ends(self, results: Sequence[Any]) -> None:
        super().forward_ends(results)
        self.meter.mark()

    def backward_begins(
        self, piece: Piece, names: Sequence[str | None], args: Sequence[Any]
    ) -> None:
        self.meter.mark()
        super().backward_begins(piece, names, args)
        assert self.current is not None
        self.begins(self.current, BACKWARD, self.current.read)

    def backward_ends(self, results: Sequence[Any]) -> None:
        super().backward_ends(results)
        self.meter.mark()

    def begins(self, seen: _Seen, local: int, read: frozenset[int]) -> None:
        self.order.append((seen, local))
        self.there.append(self.living())
        self.given.append(read)

    # Afterwards.

    def closed(self) -> list[int]:
        """Which of the segments noted belong to runs that went there and back, in order."""
        whole = [s for s in self.seen if s.backward_ran]
        return [i for i, (seen, _) in enumerate(self.order) if seen in whole]

    def runs(self) -> list[Run]:
        place = {i: segment for segment, i in enumerate(self.closed())}
        found = []
        for seen in (s for s in self.seen if s.backward_ran):
            forward, backward = (place[i] for i, (s, _) in enumerate(self.order) if s is seen)
            found.append(replace(self.run(0, seen), home=(forward, backward)))
        return found

    def until(self, key: int) -> int:
        if key in self.left:
            return FOREVER
        closed = self.closed()
        alive = [s for s, i in enumerate(closed) if key in self.there[i]]
        reads = [s for s, i in enumerate(closed) if key in self.given[i]]
        beyond = max(alive, default=-1)
        return beyond if beyond > max(reads, default=-1) else -1


@dataclass(frozen=True)
class Round:
    survey: OrderedSurvey
    held: Mapping[str, int]
    """Bytes by kind when it began: parameters, buffers, optimizer state, gradients, the batch."""
    peaks: Sequence[int] | None
    """Of each stretch, net of what was held: before a segment, in it, before the next, ..., after the last. None: not measured."""

    @property
    def peak(self) -> int | None:
        return None if self.peaks is None else sum(self.held.values()) + max(self.peaks)

    @property
    def signature(self) -> tuple[tuple[int, int], ...]:
        return tuple((seen.piece.number, local) for seen, local in self.survey.order)

    @property
    def stretches(self) -> list[tuple[int, int]] | None:
        """For each segment of a run that went there and back (peak before it, peak in it), and last (peak after all, 0)."""
        order = self.survey.order
        if self.peaks is None or len(self.peaks) != 2 * len(order) + 1:
            return None
        pairs, waiting = [], 0
        closed = set(self.survey.closed())
        for i in range(len(order)):
            before, inside = self.peaks[2 * i], self.peaks[2 * i + 1]
            if i in closed:
                pairs.append((max(waiting, before), inside))
                waiting = 0
            else:
                waiting = max(waiting, before, inside)
        return [*pairs, (max(waiting, self.peaks[-1]), 0)]


@dataclass(frozen=True)
class Extras:
    """What was measured in a round beyond what is simulated of its graphs."""

    before: Mapping[int, int]
    """By the caller's code before each segment."""
    after: int
    inside: int
    """At most, while a graph ran."""


def round_graph(one: Round, known: frozenset[int]) -> tuple[Graph, Program]:
    """The graphs of a round as one, without what is held; and the program that the survey ran."""
    runs = one.survey.runs()
    pieces = [s.piece for s in one.survey.seen if s.backward_ran]
    graph = merge(runs, known)
    if len(runs) == 1:
        assert pieces[0].program is not None
        return graph, pieces[0].program
    steps: list[tuple[str, ...]] = [()] * len(graph.segments)
    for index, piece in enumerate(pieces):
        assert piece.program is not None
        for segment, names in zip(home_of(graph, index), piece.program.steps):
            steps[segment] = tuple(f"{index}/{n}" for n in names)
    return graph, Program(tuple(steps))


def forward_only(rounds: Sequence[Round]) -> dict[str, tuple[Graph, Program]]:
    """By their hash, the graphs of which nobody wanted a gradient, and what they ran."""
    pieces = [s.piece for one in rounds for s in one.survey.seen]
    back = {id(s.piece) for one in rounds for s in one.survey.seen if s.backward_ran}
    return {
        graph_hash(piece.graph.as_captured()): (piece.graph, piece.program)
        for piece in pieces
        if id(piece) not in back and piece.program is not None
    }


def extras(one: Round, graph: Graph, program: Program, grown: int) -> Extras:
    """`graph` has what was held counted in; `grown`: by how much the optimizers' state grew during the round."""
    pairs = one.stretches
    if pairs is None:
        return Extras({}, 0, 0)
    base = sum(one.held.values())
    timeline = simulate(graph, program)
    busiest = _busiest(timeline)
    before = {s: base + peak - timeline.arrivals[s] for s, (peak, _) in enumerate(pairs[:-1])}
    inside = [base + peak - busiest[s] for s, (_, peak) in enumerate(pairs[:-1])]
    after = base + pairs[-1][0] - _left(timeline) - grown
    return Extras(before, after, max([0, *inside]))


def _busiest(timeline: Timeline) -> list[int]:
    most = list(timeline.arrivals)
    for moment in timeline.moments:
        most[moment.segment] = max(most[moment.segment], moment.during)
    return most


def _left(timeline: Timeline) -> int:
    """What is there once the last segment is over."""
    graph = timeline.graph
    last = len(graph.segments) - 1
    made = {graph.storage(r.value) for r in graph.required if r.until > last}
    owned = {graph.storage(o.value) for o in graph.outside if o.owned}
    return timeline.base + sum(graph.value[s].bytes for s in made - owned)
