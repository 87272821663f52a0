"""What does one training step compute, and from what can each tensor be made?

A `Graph` is the frozen, torch-free picture of a step. It has **values** (tensors), **ops** that read and make values,
and **segments**: stretches of time that run one after another, with the caller's own code between them (forward, then
backward; with graph breaks several of each). The ops without a `rule` are the step as captured, listed in the order they
ran. An op with a `rule` is another maker for values that already have one: a value may have several makers, and choosing
among them is the planner's whole work.

Memory belongs to storages. A view shares the storage of the value it was taken from: its `storage` names that value and
it weighs nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

__all__ = ["Graph", "Kind", "Op", "Outside", "Required", "Segment", "Value", "home_segment"]


class Kind(StrEnum):
    """What a value is to the person who trains: the rows of every memory table."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer state"
    BATCH = "batch"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    RANDOM = "random state"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor."""

    name: str
    bytes: int
    """Size of the storage; of a view, 0."""
    storage: str
    """The value whose memory this is: its own name unless it is a view."""
    kind: Kind = Kind.ACTIVATION
    layer: str = ""
    """Path of the module that made it, `encoder.layers.3.mlp`."""
    spec: str = ""
    """Dtype and shape for people, `f32[12, 64, 56, 56]`."""
    keep: bool = True
    """False where the user demanded recomputation: it may not cross from one segment into the next."""

    @property
    def is_view(self) -> bool:
        return self.storage != self.name

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = self.spec.partition("[")[2].rstrip("]")
        return tuple(int(size) for size in sizes.split(",") if size.strip())

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call: reads `inputs`, makes `outputs`."""

    name: str
    target: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    segment: int = 0
    """Index of the segment it was captured in: the earliest it may run."""
    seconds: float = 0.0
    workspace: int = 0
    """Bytes allocated while it runs besides its inputs and outputs."""
    layer: str = ""
    source: str = ""
    """The user's line, `train.py:41`."""
    signature: str = ""
    """Everything its cost depends on; the key of the cost store."""
    rerun: bool = True
    """May run more than once, and later than captured."""
    effect: bool = False
    """Changes something besides its outputs: must run exactly once, where it was captured."""
    rule: str = ""
    """Empty for captured ops; else the rule that added this maker."""
    of: str = ""
    """For a rule's op, the captured op it is another form of."""
    over: tuple[str, ...] = ()
    """Inputs over which its first output may be written, the best first. The first that is not read any more gives up its memory. Never
    anything that comes from the caller or goes to it."""
    rows: tuple[str, ...] = ()
    """Inputs that go along with the outputs, a part of whose first axis can be made from the same part of theirs (and the whole of the
    other inputs). None where rows depend on each other."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time without the caller's code in it. Segments of one piece belong to one captured graph."""

    name: str
    piece: int = 0


@dataclass(frozen=True, slots=True)
class Outside:
    """A value that no op makes: it exists from the start of segment `since` to the end of segment `until`."""

    value: str
    since: int = 0
    until: int = 10**9
    owned: bool = True
    """True where the caller holds it all that time (parameters, batch); False where it goes with its last use (tangents)."""


@dataclass(frozen=True, slots=True)
class Required:
    """A value that must exist at the end of `segment`, and that the caller holds until the end of segment `until`."""

    value: str
    segment: int
    until: int = 10**9


@dataclass(frozen=True)
class Graph:
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    segments: tuple[Segment, ...] = (Segment("forward"), Segment("backward"))
    outside: tuple[Outside, ...] = ()
    required: tuple[Required, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)
    """Bytes by kind that are allocated for the whole step and that no op here touches (other parameters, optimizer state)."""

    @cached_property
    def value(self) -> dict[str, Value]:
        return {v.name: v for v in self.values}

    @cached_property
    def op(self) -> dict[str, Op]:
        return {o.name: o for o in self.ops}

    @cached_property
    def makers(self) -> dict[str, tuple[Op, ...]]:
        """The ops that make each value, captured one first."""
        found: dict[str, list[Op]] = {v.name: [] for v in self.values}
        for op in sorted(self.ops, key=lambda o: bool(o.rule)):
            for name in op.outputs:
                found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def users(self) -> dict[str, tuple[Op, ...]]:
        found: dict[str, list[Op]] = {v.name: [] for v in self.values}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def captured(self) -> tuple[Op, ...]:
        """The step as it was captured: no rule's ops."""
        return tuple(o for o in self.ops if not o.rule)

    @cached_property
    def exists_outside(self) -> dict[str, Outside]:
        return {o.value: o for o in self.outside}

    def is_view(self, op: Op) -> bool:
        """Every output shares the storage of an input: it costs no memory and may run whenever its input is there."""
        return bool(op.outputs) and not op.effect and all(self.value[o].is_view for o in op.outputs)

    def storage(self, name: str) -> str:
        return self.value[name].storage

    def bytes_of(self, names: Iterable[str]) -> int:
        """Of the storages below these values, each once."""
        return sum(self.value[s].bytes for s in {self.storage(n) for n in names})

    def with_ops(self, ops: Iterable[Op]) -> Graph:
        return replace(self, ops=tuple(ops))

    def without(self, names: Collection[str]) -> Graph:
        """Without these ops of rules, and without what is good for nothing then."""
        ops = [o for o in self.ops if o.name not in names]
        captured = {o.value for o in self.outside} | {n for op in self.captured for n in op.outputs}
        there = captured | {n for op in ops for n in op.outputs}
        useful = captured | {n for op in ops for n in op.inputs}
        idle = {
            o.name
            for o in ops
            if o.rule and (useful.isdisjoint(o.outputs) or not there.issuperset(o.inputs))
        }
        values = tuple(v for v in self.values if v.name in there)
        left = replace(self, ops=tuple(ops), values=values)
        return left.without(idle) if idle else left

    def as_captured(self) -> Graph:
        """Without anything that rules added."""
        left = self.without({o.name for o in self.ops if o.rule})
        return left.with_ops(replace(o, over=()) if o.over else o for o in left.ops)


def home_segment(graph: Graph, op: Op, segment: int) -> bool:
    """May `op` run in this segment at all? Only in segments of its own piece, and not before it was captured."""
    return (
        segment >= op.segment and graph.segments[segment].piece == graph.segments[op.segment].piece
    )
