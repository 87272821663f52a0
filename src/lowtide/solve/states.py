"""What may happen next in a step, and what certainly must? The step in bits, for the exact solver.

Goes in: a `Graph` and a budget. Comes out: a `Step`, in which sets of storages and of ops are the bits of ints, and for each
point of it a `Stage`: the ops that may run there, the storages that may still be of use, and two lower bounds on the time that
is left when certain storages are live. Both hold for every program, whatever it drops, reorders and makes anew:

- `Stage.look`: what the caller still gets and is not live must be made, hence what all its makers read must be live or made
  too, and so on. Each op that is the only maker of such a storage runs at least once.
- `Stage.squeeze`: take one of these storages, y, at the moment it is first made. Whatever is read afterwards and does not come
  from y is there beside y's maker, or is made after it, a second time if it must have been there before. What cannot all fit
  is a knapsack, and its fractional relaxation is time beyond the first bound.

The rules are those of the simulator (`sim/memory.py`), `ir/check.py` and `sim/check.py`. Seconds are counted in ticks, whole
numbers, so that equal sums are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple

from lowtide.ir.graph import Graph, Op, Outside, home_segment
from lowtide.ir.storages import fold

__all__ = ["NEVER", "TICKS", "Move", "Stage", "Step", "bits"]

TICKS = 2**50
"""In a second."""
NEVER = 1 << 200
"""More ticks than anything takes."""


def bits(mask: int) -> Iterator[int]:
    """The single bits of a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low


class Sizes(dict[int, int]):
    """The bytes of each set of storages, added up when first asked for."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__({1 << i: size for i, size in enumerate(sizes)})
        self[0] = 0
        self.unit = gcd(*sizes) or 1
        """All sizes are multiples of it."""

    def __missing__(self, mask: int) -> int:
        self[mask] = found = sum(self[bit] for bit in bits(mask))
        return found


@dataclass(frozen=True, slots=True)
class Move:
    """An op that may run."""

    name: str
    bit: int
    reads: int
    makes: int
    ticks: int
    beside: int
    """Bytes in use while it runs, besides what is live and what it makes: workspace, and copies of what the caller owns."""
    segments: int
    """Where it may run."""
    once: int
    """Its own bit if it may run only once, else 0."""
    after: int
    """Of an effect, the effects that come before it."""
    effect: bool


class Hold(NamedTuple):
    """A copy in the caller's hands."""

    storage: int
    until: int
    newest: bool
    """Nobody made another one since: readers read this one."""


class Step:
    """What is the same all through the search. Storages the caller owns are left out: they are always there."""

    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph = graph
        self.folded = folded = fold(graph)
        self.last = len(graph.segments) - 1
        names = [*folded.arrives, *(s for op in folded.ops for s in folded.makes[op.name])]
        self.names = [s for s in dict.fromkeys(names) if s not in folded.owned]
        self.bit = {name: 1 << i for i, name in enumerate(self.names)}
        self.size = Sizes([folded.bytes[s] for s in self.names])
        base = sum(graph.held.values()) + sum(folded.bytes[s] for s in folded.owned)
        self.room = budget - base
        segments = range(len(graph.segments))
        self.arrives = [
            self.mask(s for s, since in folded.arrives.items() if since == n) for n in segments
        ]
        self.holds = [self._holds(n) for n in segments]
        """For each segment what the caller gets at its end, and until when."""
        self.required = [sum(hold.storage for hold in holds) for holds in self.holds]
        self.fleeting = [self._fleeting(n) for n in segments]
        """For each segment the storages that may not outlast it, because the user said so."""
        self.moves = self._moves()
        self.stages: dict[tuple[int, int], Stage] = {}

    def mask(self, storages: Iterator[str]) -> int:
        return sum(self.bit.get(s, 0) for s in dict.fromkeys(storages))

    def stage(self, segment: int, done: int) -> Stage:
        found = self.stages.get((segment, done))
        if found is None:
            found = self.stages[segment, done] = Stage(self, segment, done)
        return found

    @cached_property
    def expressible(self) -> bool:
        """False where what comes from outside only for a while can be made as well: one bit does not tell the copies apart."""
        made = {s for makes in self.folded.makes.values() for s in makes}
        both = [o for o in self.graph.outside if self.graph.storage(o.value) in made]
        return all(o.until >= self.last and o.since == self._comes(o) for o in both)

    def _comes(self, outside: Outside) -> int:
        return self.folded.arrives.get(self.graph.storage(outside.value), 0)

    def _holds(self, segment: int) -> list[Hold]:
        until: dict[int, int] = {}
        for required in self.graph.required:
            bit = self.bit.get(self.graph.storage(required.value))
            if required.segment == segment and bit:
                until[bit] = max(until.get(bit, 0), min(required.until, self.last))
        return [Hold(bit, end, True) for bit, end in until.items()]

    def _fleeting(self, segment: int) -> int:
        held = {
            self.graph.storage(r.value)
            for r in self.graph.required
            if r.segment <= segment < r.until
        }
        return self.mask(s for s in self.names if not self.graph.value[s].keep and s not in held)

    def _moves(self) -> list[Move]:
        moves: list[Move] = []
        effects = 0
        for number, op in enumerate(self.folded.ops):
            bit = 1 << number
            segments = sum(1 << s for s in range(self.last + 1) if self._may_run(op, s))
            reads = self.mask(iter(self.folded.reads[op.name]))
            makes = self.mask(iter(self.folded.makes[op.name]))
            beside = op.workspace + sum(
                self.folded.bytes[s] for s in self.folded.makes[op.name] if s not in self.bit
            )
            beside += self.size[reads & makes]  # it makes anew what it reads: both copies are there
            # As if it could always be written over the largest input that it may be: what is proved holds for less as well.
            beside -= max((self.graph.value[name].bytes for name in op.over), default=0)
            once = 0 if op.rerun else bit
            after = effects if op.effect else 0
            effects |= bit if op.effect else 0
            ticks = int(op.seconds * TICKS)
            moves.append(
                Move(op.name, bit, reads, makes, ticks, beside, segments, once, after, op.effect)
            )
        return moves

    def _may_run(self, op: Op, segment: int) -> bool:
        if not home_segment(self.graph, op, segment) or not (op.rerun or segment == op.segment):
            return False
        outside = self.graph.exists_outside
        found = (outside.get(v) or outside.get(self.graph.storage(v)) for v in op.inputs)
        return all(o is None or o.since <= segment <= o.until for o in found)


class _Row(NamedTuple):
    """How one storage is made from a stage on."""

    common: int
    """What all its makers read."""
    only: int
    """Its maker's bit, if it has one maker."""
    ticks: int
    """That maker's."""
    makers: tuple[tuple[int, int, int], ...]
    """For each maker: its bit, what it makes, and the ticks one of these costs at least."""
    own: int
    """What any of them reads or makes."""
    least: int
    """The fewest bytes in use while one of them runs."""


class Stage:
    """A point of the step: a segment, and the ops that may run once and have run."""

    def __init__(self, step: Step, segment: int, done: int) -> None:
        self.size, self.room = step.size, step.room
        later = [m for m in step.moves if m.segments >> segment and not m.once & done]
        later = [m for m in later if step.size[m.reads | m.makes] + m.beside <= step.room]
        effects = [m for m in step.moves if m.effect and m.segments >> segment and not m.bit & done]
        self.stuck = len(effects) > sum(m.effect for m in later)
        """An effect that must still happen cannot."""
        self.required = step.required[segment]
        self.final = step.required[step.last]
        wanted = 0
        for mask in step.required[segment:]:
            wanted |= mask
        self.useful = _useful(later, wanted)
        """Storages that can still serve for something."""
        self.later = [m for m in later if m.effect or m.makes & self.useful]
        self.now = [m for m in self.later if m.segments >> segment & 1 and not m.after & ~done]
        self.may_end = not any(m.segments >> segment & 1 for m in effects)
        self.kept = wanted
        """What the caller still gets."""
        for move in effects:
            wanted |= move.reads
        coming = 0
        for mask in step.arrives[segment + 1 :]:
            coming |= mask
        self.goals = wanted & ~coming
        self.effects = sum(m.bit for m in effects)
        self.effect_ticks = sum(m.ticks for m in effects)
        self.rows = {bit: self._row(bit, coming) for bit in step.bit.values()}
        made = {bit: row for bit, row in self.rows.items() if row is not None}
        self.common = {bit: row.common for bit, row in made.items()}
        self.together = sum(b for b, r in made.items() if any(m[1] != b for m in r.makers))
        """Storages that have a maker which makes others as well."""
        shares = [(b, min(m[2] for m in r.makers), step.size[b]) for b, r in made.items()]
        self.by_price = sorted((s for s in shares if s[2]), key=lambda s: s[1] / s[2])
        """Storages with the ticks it takes to make them and their bytes, the cheapest bytes first."""

    def _row(self, storage: int, coming: int) -> _Row | None:
        makers = [m for m in self.later if m.makes & storage]
        if not makers:
            return None
        common, own = makers[0].reads, 0
        for move in makers:
            common &= move.reads
            own |= move.reads | move.makes
        return _Row(
            common=common & ~coming,
            only=makers[0].bit if len(makers) == 1 else 0,
            ticks=makers[0].ticks,
            makers=tuple((m.bit, m.makes, _share(m)) for m in makers),
            own=own | coming,
            least=min(self.size[m.reads | m.makes] + m.beside for m in makers),
        )

    def look(self, live: int) -> tuple[int, int]:
        """The storages that must still be made, and the ticks it takes at least to make each of them once."""
        needed = todo = self.goals & ~live
        if self.stuck:
            return needed, NEVER
        ran, ticks = self.effects, self.effect_ticks
        several: list[_Row] = []
        while todo:
            low = todo & -todo
            row = self.rows[low]
            if row is None:
                return needed, NEVER
            if not row.only:
                several.append(row)
            elif not row.only & ran:
                ran |= row.only
                ticks += row.ticks
            more = row.common & ~(needed | live)
            needed |= more
            todo = (todo ^ low) | more
        for row in several:
            ticks += min(0 if bit & ran else share for bit, _, share in row.makers)
        return needed, ticks

    def serving(self, needed: int, slack: int) -> int:
        """The storages that can serve when no more than `slack` is spent on anything but what is needed."""
        found = self.kept
        for move in self.later:
            if move.makes & needed or move.ticks <= slack or move.effect:
                found |= move.reads
        return found

    def cheapest_reader(self, storages: int) -> int:
        """The ticks of the quickest op that reads one of these."""
        return min((move.ticks for move in self.later if move.reads & storages), default=NEVER)

    def squeeze(self, needed: int) -> int:
        """Ticks beyond those of `look`, for what cannot be there at the tightest moment to come."""
        common, size = self.common, self.size
        before: dict[int, int] = {}
        for storage in bits(needed):  # in an order in which they can be made
            found = common[storage] & needed
            for earlier in bits(found):
                found |= before.get(earlier, 0)
            before[storage] = found
        extra = 0
        for storage, earlier in before.items():
            row = self.rows[storage]
            assert row is not None, "look() has said that it can be made"
            after, read = storage, self.final
            for other, above in before.items():
                if above & storage:
                    after |= other
                    read |= common[other]
            waiting = read & ~(after | row.own)
            excess = size[waiting] + row.least - self.room
            if excess > 0:
                extra = max(extra, self._cheapest(waiting, excess, needed & ~earlier))
        return extra

    def _cheapest(self, waiting: int, excess: int, counted: int) -> int:
        """The least ticks to be without so many bytes of these, and have them made afterwards. An op that makes something
        counted already may cost nothing more."""
        free = waiting & counted
        for storage in bits(waiting & self.together & ~counted):
            row = self.rows[storage]
            if row is not None and any(makes & counted for _, makes, _ in row.makers):
                free |= storage
        excess -= self.size[free]
        if excess <= 0:
            return 0
        waiting &= ~free
        excess += -excess % self.size.unit
        total = 0
        for storage, cost, size in self.by_price:
            if storage & waiting:
                if size >= excess:
                    return total + cost * excess // size
                total += cost
                excess -= size
        return NEVER


def _share(move: Move) -> int:
    """An effect happens anyway; what another op makes shares its ticks."""
    return 0 if move.effect else move.ticks // move.makes.bit_count()


def _useful(later: list[Move], wanted: int) -> int:
    found, before = wanted, -1
    while found != before:
        before = found
        for move in later:
            if move.effect or move.makes & found:
                found |= move.reads
    return found
