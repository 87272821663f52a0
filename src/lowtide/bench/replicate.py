"""How does a captured step of a few blocks become one of a thousand? By repeating its middle block, op by op.

Capturing tens of thousands of ops takes longer than planning them. But a network of equal blocks, or an RNN of equal time steps, has ops that
repeat: forward has a stretch in which the same calls with the same shapes come again every so many ops, and backward has one that runs
through the same blocks the other way. One block in the middle is copied: what its ops read from the block before or after it is read
from the copy before or after; each copy has parameters and required gradients of its own where the block has; what all blocks share
stays shared. The result is, up to names, the graph that capturing the deeper network gives (a test compares the two).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lowtide.errors import GraphError
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Op, Value

__all__ = ["Blocks", "find_blocks", "replicate"]

_LEAST = 4
"""Blocks a captured graph must have: one to copy, its neighbours, and the ends."""
FORWARD, BACKWARD = 0, 1


class _Item(NamedTuple):
    """What a value is within its block, wherever that block is."""

    segment: int
    """Of the op that makes it; -1 for a parameter."""
    phase: int
    """Which op of the block."""
    place: int
    """Which output of it; of a parameter, which input."""


@dataclass(frozen=True)
class _Stretch:
    """Ops `first` to `first + length * count` of a segment: `count` periods of `length` ops."""

    first: int
    length: int
    count: int

    def at(self, position: int) -> tuple[int, int] | None:
        """The period and the phase of an op; None outside of the stretch."""
        period, phase = divmod(position - self.first, self.length)
        return (period, phase) if 0 <= period < self.count else None


@dataclass(frozen=True)
class Blocks:
    """Where a graph repeats. Blocks are numbered as forward runs through them."""

    graph: Graph
    ops: tuple[tuple[Op, ...], tuple[Op, ...]]
    """Of forward and of backward."""
    stretches: tuple[_Stretch, _Stretch]
    mirror: int
    """Backward's period j is of block `mirror - j`."""
    middle: int
    """The block that is copied."""

    @property
    def size(self) -> int:
        """Ops of one block, views left out."""
        return sum(not self.graph.is_view(op) for segment in (0, 1) for op in self.of(segment))

    def block(self, segment: int, position: int) -> tuple[int, int] | None:
        """The block and the phase of an op."""
        found = self.stretches[segment].at(position)
        if found is None:
            return None
        period, phase = found
        return (period if segment == FORWARD else self.mirror - period), phase

    def of(self, segment: int) -> tuple[Op, ...]:
        """The middle block's ops."""
        stretch = self.stretches[segment]
        period = self.middle if segment == FORWARD else self.mirror - self.middle
        start = stretch.first + period * stretch.length
        return self.ops[segment][start : start + stretch.length]


def find_blocks(graph: Graph) -> Blocks:
    """Raises `GraphError` where the graph does not repeat."""
    if len(graph.segments) != 2 or len(graph.captured) != len(graph.ops):
        raise GraphError("only one forward and one backward, as captured, can be repeated")
    forward = tuple(o for o in graph.ops if o.segment == FORWARD)
    backward = tuple(o for o in graph.ops if o.segment == BACKWARD)
    stretches = _stretch(graph, forward), _stretch(graph, backward)
    mirror = _mirror(forward, backward, stretches)
    first = max(0, mirror - stretches[1].count + 1)
    last = min(stretches[0].count - 1, mirror)
    if last - first + 1 < _LEAST:
        raise GraphError(f"only {last - first + 1} blocks repeat in forward and in backward")
    return Blocks(graph, (forward, backward), stretches, mirror, (first + last) // 2)


def _stretch(graph: Graph, ops: Sequence[Op]) -> _Stretch:
    """The longest run of ops that look like those one period later."""
    keys = [(o.target, *(graph.value[n].spec for n in (*o.inputs, *o.outputs))) for o in ops]
    best = _Stretch(0, 1, 0)
    longest = 0
    for period in range(1, len(keys) // 2 + 1):
        run = 0
        for position in range(len(keys) - period):
            run = run + 1 if keys[position] == keys[position + period] else 0
            if run > longest:
                longest = run
                best = _Stretch(position - run + 1, period, (run + period) // period)
    return best


def _mirror(
    forward: Sequence[Op], backward: Sequence[Op], stretches: tuple[_Stretch, _Stretch]
) -> int:
    """What forward's and backward's periods add up to, by what most ops of backward read."""
    made: dict[str, int] = {}
    for position, op in enumerate(forward):
        found = stretches[FORWARD].at(position)
        if found:
            made |= dict.fromkeys(op.outputs, found[0])
    votes: Counter[int] = Counter()
    for position, op in enumerate(backward):
        found = stretches[BACKWARD].at(position)
        if found:
            votes.update(found[0] + made[name] for name in op.inputs if name in made)
    if not votes:
        raise GraphError("backward reads nothing of the forward ops that repeat")
    return votes.most_common(1)[0][0]


def replicate(blocks: Blocks, copies: int) -> Graph:
    """The graph with so many more blocks."""
    graph = _Copying(blocks, copies).graph()
    check_graph(graph)
    return graph


class _Copying:
    """One replication. Block numbers in the new graph: the copies come after the middle block, the old later blocks after them."""

    def __init__(self, blocks: Blocks, copies: int) -> None:
        self.blocks, self.copies, self.old = blocks, copies, blocks.graph
        self.home: dict[str, tuple[int, _Item]] = {}
        """Of a value that repeats: its old block, and what it is there."""
        self.names: dict[tuple[int, _Item], str] = {}
        self.maker_block: dict[str, int] = {}
        placed = [
            (segment, op, *found)
            for segment in (FORWARD, BACKWARD)
            for position, op in enumerate(blocks.ops[segment])
            if (found := blocks.block(segment, position))
        ]
        for _, op, block, _ in placed:
            self.maker_block[op.name] = block
        for segment, op, block, phase in placed:
            for place, name in enumerate(op.outputs):
                self.settle(name, block, _Item(segment, phase, place))
            for place, name in enumerate(op.inputs):
                if segment == FORWARD and name not in self.home and self.is_own(name, block):
                    self.settle(name, block, _Item(-1, phase, place))
        self.check_shared()

    def is_own(self, name: str, block: int) -> bool:
        """Is it a parameter that forward reads in this block only?"""
        readers = [o for o in self.old.users[name] if o.segment == FORWARD]
        here = all(self.maker_block.get(o.name) == block for o in readers)
        return here and name in self.old.exists_outside

    def check_shared(self) -> None:
        """What the middle block reads or makes outside of the stretches must not be its own: it would not be repeated."""
        middle = self.blocks.middle
        for segment, step in ((FORWARD, 1), (BACKWARD, -1)):
            ops, stretch = self.blocks.of(segment), self.blocks.stretches[segment]
            start = self.blocks.ops[segment].index(ops[0]) + step * stretch.length
            for op, later in zip(ops, self.blocks.ops[segment][start:]):
                for name, other in zip(op.inputs, later.inputs):
                    if name not in self.home and name != other:
                        raise GraphError(f"%{name} is read by one block only, but does not repeat")
        for name, (block, _) in self.home.items():
            for reader in self.old.users[name] if block == middle else ():
                if reader.name not in self.maker_block:
                    raise GraphError(f"%{name} is read by %{reader.name}, which does not repeat")

    def settle(self, name: str, block: int, item: _Item) -> None:
        self.home[name] = block, item
        self.names[block, item] = name

    def graph(self) -> Graph:
        middle, more = self.blocks.middle, range(1, self.copies + 1)
        values = [self.moved_value(v) for v in self.old.values]
        outside, required = list(self.old.outside), list(self.old.required)
        own = [v for v in self.old.values if v.name in self.home and self.home[v.name][0] == middle]
        exists = self.old.exists_outside
        wanted = {r.value: r for r in self.old.required}
        for copy in more:
            for value in own:
                values.append(self.copied_value(value, copy))
                name = values[-1].name
                if value.name in exists:
                    outside.append(replace(exists[value.name], value=name))
                if value.name in wanted:
                    required.append(replace(wanted[value.name], value=name))
        return replace(
            self.old,
            values=tuple(values),
            ops=(*self.forward(), *self.backward()),
            outside=tuple(outside),
            required=tuple(required),
        )

    def forward(self) -> Iterator[Op]:
        stretch = self.blocks.stretches[FORWARD]
        end = stretch.first + (self.blocks.middle + 1) * stretch.length
        yield from map(self.moved_op, self.blocks.ops[FORWARD][:end])
        for copy in range(1, self.copies + 1):
            yield from (self.copied_op(op, copy) for op in self.blocks.of(FORWARD))
        yield from map(self.moved_op, self.blocks.ops[FORWARD][end:])

    def backward(self) -> Iterator[Op]:
        stretch = self.blocks.stretches[BACKWARD]
        start = stretch.first + (self.blocks.mirror - self.blocks.middle) * stretch.length
        yield from map(self.moved_op, self.blocks.ops[BACKWARD][:start])
        for copy in range(self.copies, 0, -1):
            yield from (self.copied_op(op, copy) for op in self.blocks.of(BACKWARD))
        yield from map(self.moved_op, self.blocks.ops[BACKWARD][start:])

    # Names.

    def moved_op(self, op: Op) -> Op:
        block = self.maker_block.get(op.name)
        if block is None:
            return op
        return replace(
            op,
            inputs=tuple(self.seen_from(n, block, self.moved(block)) for n in op.inputs),
            rows=tuple(self.seen_from(n, block, self.moved(block)) for n in op.rows),
        )

    def moved_value(self, value: Value) -> Value:
        if value.name not in self.home or not value.is_view:
            return value
        block = self.home[value.name][0]
        return replace(value, storage=self.seen_from(value.storage, block, self.moved(block)))

    def moved(self, block: int) -> int:
        """The new number of an old block."""
        return block if block <= self.blocks.middle else block + self.copies

    def copied_op(self, op: Op, copy: int) -> Op:
        middle = self.blocks.middle
        return replace(
            op,
            name=_copy_name(op.name, copy),
            inputs=tuple(self.seen_from(n, middle, middle + copy) for n in op.inputs),
            rows=tuple(self.seen_from(n, middle, middle + copy) for n in op.rows),
            outputs=tuple(_copy_name(n, copy) for n in op.outputs),
        )

    def copied_value(self, value: Value, copy: int) -> Value:
        middle = self.blocks.middle
        storage = self.seen_from(value.storage, middle, middle + copy)
        return replace(value, name=_copy_name(value.name, copy), storage=storage)

    def seen_from(self, name: str, old: int, new: int) -> str:
        """What an op that was in block `old` and is now in block `new` reads where it read `name`."""
        if name not in self.home:
            return name
        block, item = self.home[name]
        if abs(block - old) > 1:
            if old == self.blocks.middle:
                raise GraphError(
                    f"%{name} of block {block} is read in block {old}: too far to repeat"
                )
            return name
        number, middle = new + block - old, self.blocks.middle
        if middle < number <= middle + self.copies:
            return _copy_name(self.names[middle, item], number - middle)
        return self.names[number if number <= middle else number - self.copies, item]


def _copy_name(name: str, copy: int) -> str:
    """In the first part of a name, so that `dropout.generator` stays the generator of `dropout`."""
    first, dot, rest = name.partition(".")
    return f"{first}_copy{copy}{dot}{rest}"
