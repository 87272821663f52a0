"""What is the fastest program of all within the budget? An exact solver for small graphs.

Goes in: a `Graph` and a budget in bytes. Comes out: an `Exact`: a fastest program, or the proof that there is none, or, when
the search is cut short, the seconds that no program can beat.

A best-first search (A*) over the states of a step. A state is a segment, the storages that are live, the ops that may run only
once and have, and the copies in the caller's hands. Running an op leads from one state to another, and so does the end of a
segment. Frees cost nothing and are put off until something does not fit; then every smallest set that makes room is tried, so
that every program has its path here, with the very bytes the simulator gives it (`sim/memory.py`). Three things keep it small:

- two lower bounds on the time that is left (`solve/states.py`); the dearer one is computed only for states that come up;
- a state is left out if another had at least the same storages live at no greater cost;
- the search goes in rounds, each for programs up to some number of seconds, first few, then more. A storage that serves nobody
  but ops beyond these seconds is of no use and does not tell states apart.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.sim.memory import simulate
from lowtide.solve.states import NEVER, TICKS, Hold, Step, bits

__all__ = ["Exact", "exact"]

_COMPARED = 400
"""A state is compared with so many others: beyond that it is cheaper to look at one too many."""


@dataclass(frozen=True)
class Exact:
    program: Program | None
    """A fastest one within the budget; none if there is none, if the search was cut short, or if what it found could write over
    less than it thought."""
    seconds: float
    """Infinite without a program."""
    bound: float
    """Seconds that no program within the budget can beat."""
    proved: bool
    """The program is optimal; or, where none is given, there is none (or none faster than was asked for)."""
    nodes: int
    """States looked at."""


def exact(
    graph: Graph,
    budget: int,
    nodes: int = 200_000,
    faster_than: float = math.inf,
    patience: float = math.inf,
) -> Exact:
    """Looks at up to `nodes` states, and for up to `patience` seconds, for a program that takes less than `faster_than` seconds."""
    until = time.perf_counter() + patience
    step = Step(graph, budget)
    if not step.expressible:
        return Exact(None, math.inf, 0.0, False, 0)
    most = NEVER if math.isinf(faster_than) else int(faster_than * TICKS * (1 - 1e-12)) - 1
    first = least = limit = step.stage(0, 0).look(step.arrives[0])[1]
    used = 0
    while least <= most and least < NEVER and step.room >= 0:
        if used >= nodes:
            return Exact(None, math.inf, _seconds(least, faster_than), False, used)
        search = _Search(step, min(limit, most), nodes - used, until)
        end = search.run()
        used += search.nodes
        least = max(least, search.bound)
        if end is not None:
            timeline = simulate(graph, search.program(end))
            if timeline.peak > budget:  # states take writing over an input for always possible
                return Exact(None, math.inf, timeline.seconds, False, used)
            return Exact(timeline.program, timeline.seconds, timeline.seconds, True, used)
        if search.stopped:
            return Exact(None, math.inf, _seconds(least, faster_than), False, used)
        limit = least + (least - first)
    return Exact(None, math.inf, _seconds(NEVER, faster_than), True, used)


def _seconds(ticks: int, most: float) -> float:
    return min(most, ticks / TICKS) if ticks < NEVER else most


class _State(NamedTuple):
    segment: int
    live: int
    done: int
    """The ops that may run only once and have, and all such ops of earlier segments."""
    held: tuple[Hold, ...]


class _Search:
    """One round: all programs that take at most `limit` ticks, the most promising first."""

    def __init__(self, step: Step, limit: int, most: int, until: float) -> None:
        self.step, self.limit, self.most, self.until = step, limit, most, until
        self.nodes = 0
        self.stopped = False
        self.bound = NEVER
        """No program takes less: of all that was put off or left out because of the limit, the least."""
        self.queue: list[tuple[int, int, int, bool, _State]] = []
        self.cost: dict[_State, int] = {}
        self.expanded: dict[_State, int] = {}
        self.origin: dict[_State, tuple[_State | None, str]] = {}
        self.seen: defaultdict[tuple[int, int, tuple[Hold, ...]], list[tuple[int, int]]] = (
            defaultdict(list)
        )
        self.once = [
            sum(m.once for m in step.moves if m.segments >> s & 1) for s in range(step.last + 1)
        ]

    def run(self) -> _State | None:
        """The end of a fastest program; none if there is none within the limit, or if it was stopped."""
        for state in self.entered(0, 0, 0, ()):
            self.add(state, 0, 0, None, "")
        while self.queue:
            total, _, _, weighed, state = heappop(self.queue)
            cost = self.cost[state]
            if state.segment > self.step.last:
                self.bound = total
                return state
            if not weighed and not self.late:
                self.weigh(state, cost, total)
            elif self.late or (
                not self.is_beaten(state, cost) and not self.expand(state, cost, total)
            ):
                self.stopped = True
                self.bound = min(self.bound, total)
                return None
        return None

    @property
    def late(self) -> bool:
        return time.perf_counter() > self.until

    def program(self, end: _State) -> Program:
        steps: list[list[str]] = [[] for _ in range(self.step.last + 1)]
        state: _State | None = end
        while state is not None:
            before, name = self.origin[state]
            if name:
                steps[state.segment].append(name)
            state = before
        return Program(tuple(tuple(reversed(names)) for names in steps))

    def weigh(self, state: _State, cost: int, total: int) -> None:
        """Puts a state back with the better of the bounds."""
        stage = self.step.stage(state.segment, state.done)
        needed, ticks = stage.look(state.live)
        self.push(state, cost, max(total, cost + ticks + stage.squeeze(needed)), True)

    def push(self, state: _State, cost: int, total: int, weighed: bool) -> None:
        if total > self.limit:
            self.bound = min(self.bound, total)
        else:
            heappush(self.queue, (total, -cost, len(self.origin), weighed, state))

    def is_beaten(self, state: _State, cost: int) -> bool:
        if self.expanded.get(state, NEVER) <= cost:
            return True
        others = self.seen[state.segment, state.done, state.held]
        live = state.live
        for other, paid in others[-_COMPARED:]:
            if paid <= cost and not live & ~other:
                return True
        others.append((live, cost))
        self.expanded[state] = cost
        return False

    def expand(self, state: _State, cost: int, total: int) -> bool:
        """False if there were too many states to look at, or it took too long."""
        for after, ticks, name in self.next(state):
            if self.nodes >= self.most or self.late:
                return False
            self.add(after, cost + ticks, total, state, name)
        return True

    def add(self, state: _State, cost: int, total: int, before: _State | None, name: str) -> None:
        segment, live, done, held = state
        if segment <= self.step.last:
            self.nodes += 1
            stage = self.step.stage(segment, done)
            pinned = _pinned(held)
            live &= stage.useful | pinned
            needed, ticks = stage.look(live)
            slack = self.limit - cost - ticks
            if slack < 0:
                self.bound = min(self.bound, max(total, cost + ticks))
                return
            total = max(total, cost + ticks)
            idle = live & ~stage.serving(needed, slack) & ~pinned
            if idle:
                self.bound = min(self.bound, cost + ticks + stage.cheapest_reader(idle))
            state = _State(segment, live & ~idle, done, held)
        if cost < self.cost.get(state, NEVER):
            self.cost[state] = cost
            self.origin[state] = before, name
            self.push(state, cost, total, segment > self.step.last)

    def next(self, state: _State) -> Iterator[tuple[_State, int, str]]:
        """Every state one op later, with the op's ticks and name; and those in the next segment."""
        segment, live, done, held = state
        stage = self.step.stage(segment, done)
        pinned = _pinned(held)
        for move in stage.now:
            if move.reads & ~live or not (move.makes & ~live or move.effect):
                continue
            after = _remade(held, move.makes)
            staying = live & ~move.makes
            excess = self.excess(staying, move.makes, after) + move.beside
            for freed in self.frees(staying & ~move.reads & ~pinned, excess):
                there = staying & ~freed | move.makes
                yield _State(segment, there, done | move.once, after), move.ticks, move.name
        if stage.may_end and not stage.required & ~live:
            for entered in self.entered(segment + 1, live, done | self.once[segment], held):
                yield entered, 0, ""

    def entered(
        self, segment: int, live: int, done: int, held: tuple[Hold, ...]
    ) -> Iterator[_State]:
        """The states at the start of a segment, once the caller has got what the one before makes, and let go of other things."""
        step = self.step
        if segment > step.last:
            yield _State(segment, 0, 0, ())
            return
        if segment:
            held = _handed_over(held, step.holds[segment - 1], segment)
            live &= ~step.fleeting[segment - 1]
        arriving = step.arrives[segment]
        held = _remade(held, arriving)
        staying = live & ~arriving
        for freed in self.frees(staying & ~_pinned(held), self.excess(staying, arriving, held)):
            yield _State(segment, staying & ~freed | arriving, done, held)

    def excess(self, staying: int, new: int, held: tuple[Hold, ...]) -> int:
        size = self.step.size
        beside = sum(size[hold.storage] for hold in held if not hold.newest)
        return size[staying] + size[new] + beside - self.step.room

    def frees(self, storages: int, excess: int) -> Iterator[int]:
        """The smallest sets of these storages that weigh so much: none of them has one too many."""
        if excess <= 0:
            yield 0
            return
        size = self.step.size
        items = sorted(bits(storages), key=size.__getitem__, reverse=True)
        rest = [*accumulate(map(size.__getitem__, reversed(items)))][::-1]
        pending = [(0, excess, 0)]
        while pending:
            place, missing, chosen = pending.pop()
            for at in range(place, len(items)):
                weight = size[items[at]]
                if rest[at] < missing:
                    break
                if weight >= missing:
                    yield chosen | items[at]
                else:
                    pending.append((at + 1, missing - weight, chosen | items[at]))


def _pinned(held: tuple[Hold, ...]) -> int:
    """What cannot be freed, because the caller holds the copy that is read."""
    return sum(hold.storage for hold in held if hold.newest)


def _remade(held: tuple[Hold, ...], makes: int) -> tuple[Hold, ...]:
    """A new copy is beside the one in the caller's hands, and it is the one that is read."""
    if not makes & _pinned(held):
        return held
    return tuple(h._replace(newest=h.newest and not h.storage & makes) for h in held)


def _handed_over(held: tuple[Hold, ...], required: list[Hold], segment: int) -> tuple[Hold, ...]:
    """What is in the caller's hands when a segment starts: what it gets now, and what it does not let go of."""
    found = list(held)
    for new in required:
        same = [h for h in found if h.newest and h.storage == new.storage]
        found = [h for h in found if h not in same]
        found.append(new._replace(until=max([new.until, *(h.until for h in same)])))
    return tuple(sorted(h for h in found if h.until >= segment))
