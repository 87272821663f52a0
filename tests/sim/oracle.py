"""What a program takes, found by running it: the slow, independent answer the simulator must agree with.

Storages are Python objects that give their bytes back when the last reference goes, views are objects that hold the
one they were taken from, and the caller is a list of references. Ops run in order; after each, every name that no
later op reads is deleted. Nothing here is shared with `sim/memory.py` or `ir/storages.py`: who reads what later is
looked up by walking on from where the program stands, every time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lowtide.ir.graph import Graph, Op
from lowtide.ir.program import Program

__all__ = ["Ran", "execute"]


@dataclass
class Ran:
    base: int = 0
    moments: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Segment, op, bytes during, bytes after."""
    alive: list[dict[str, int]] = field(default_factory=list)
    """For each moment the storages that exist, with their bytes; what the caller brought left out."""
    arrivals: list[int] = field(default_factory=list)
    kept: list[set[str]] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0


class Heap:
    def __init__(self) -> None:
        self.bytes = 0
        self.blocks: Counter[str] = Counter()

    def note(self, name: str, size: int, count: int) -> None:
        self.bytes += size * count
        self.blocks[name] += count


class Block:
    """A storage."""

    def __init__(self, heap: Heap, name: str, size: int) -> None:
        self.heap, self.name, self.size = heap, name, size
        heap.note(name, size, 1)

    def __del__(self) -> None:
        self.heap.note(self.name, self.size, -1)


class View:
    """A tensor without memory of its own."""

    def __init__(self, base: Block | View) -> None:
        self.base = base


Event = tuple[str, int, str]
"""What happens ("start", "op" or "end"), in which segment, and the op's name."""


def execute(graph: Graph, program: Program) -> Ran:
    events = without_dead_ops(graph, all_events(program))
    return Machine(graph, events).run()


def all_events(program: Program) -> list[Event]:
    events: list[Event] = []
    for segment, names in enumerate(program.steps):
        events.append(("start", segment, ""))
        events += [("op", segment, name) for name in names]
        events.append(("end", segment, ""))
    return events


def without_dead_ops(graph: Graph, events: list[Event]) -> list[Event]:
    """Delete one dead op after another until none is left."""
    for index, (what, _, name) in enumerate(events):
        if what == "op" and not graph.op[name].effect:
            made = [v for v in graph.op[name].outputs if not graph.value[v].is_view]
            if not any(read_later(graph, events, index, storage) for storage in made):
                return without_dead_ops(graph, events[:index] + events[index + 1 :])
    return events


def read_later(graph: Graph, events: list[Event], index: int, storage: str) -> bool:
    """Does anyone, after event number `index`, want the copy of `storage` that is there now?"""
    for what, segment, name in events[index + 1 :]:
        if what == "op":
            if any(graph.storage(v) == storage for v in graph.op[name].inputs):
                return True
            if storage in graph.op[name].outputs:
                return False
        elif what == "end":
            if any(
                r.segment == segment and graph.storage(r.value) == storage for r in graph.required
            ):
                return True
        elif any(o.value == storage and o.since == segment for o in graph.outside):
            return False
    return False


class Machine:
    def __init__(self, graph: Graph, events: list[Event]) -> None:
        self.graph, self.events = graph, events
        self.heap = Heap()
        self.names: dict[str, Block | View] = {}
        self.caller: list[tuple[int, Block]] = []
        """What the caller holds, and the segment at whose end it lets go."""
        self.ran = Ran()

    def run(self) -> Ran:
        ballast = [Block(self.heap, f"held {kind}", size) for kind, size in self.graph.held.items()]
        owned = {self.graph.storage(o.value) for o in self.graph.outside if o.owned}
        for storage in owned:
            self.names[storage] = Block(self.heap, storage, self.graph.value[storage].bytes)
        ballast += [self.block(storage) for storage in owned]
        self.brought = {block.name for block in ballast}
        self.ran.base = self.ran.peak = self.heap.bytes
        for index, (what, segment, name) in enumerate(self.events):
            if what == "start":
                self.start(segment)
                self.sweep(index)
            elif what == "op":
                self.operate(index, segment, self.graph.op[name])
            else:
                self.end(index, segment)
        return self.ran

    def start(self, segment: int) -> None:
        for outside in self.graph.outside:
            if not outside.owned and outside.since == segment:
                value = self.graph.value[outside.value]
                self.names[value.name] = Block(self.heap, value.name, value.bytes)
        self.ran.arrivals.append(self.heap.bytes)
        self.ran.peak = max(self.ran.peak, self.heap.bytes)

    def operate(self, index: int, segment: int, op: Op) -> None:
        arguments = [self.take(v) for v in op.inputs]
        for storage in op.over:
            if not read_later(self.graph, self.events, index, storage):
                # Its memory is the output's from here on.
                del arguments
                self.forget(storage)
                arguments = []
                break
        fresh = {
            v: Block(self.heap, v, self.graph.value[v].bytes)
            for v in op.outputs
            if not self.graph.value[v].is_view
        }
        during = self.heap.bytes + op.workspace
        self.ran.alive.append(
            {
                name: count * self.graph.value[name].bytes
                for name, count in self.heap.blocks.items()
                if count and name not in self.brought
            }
        )
        for storage in fresh:
            self.forget(storage)
        self.names.update(fresh)
        del arguments, fresh
        self.sweep(index)
        self.ran.moments.append((segment, op.name, during, self.heap.bytes))
        self.ran.seconds += op.seconds
        self.ran.peak = max(self.ran.peak, during)

    def end(self, index: int, segment: int) -> None:
        last = len(self.graph.segments) - 1
        for required in self.graph.required:
            if required.segment == segment:
                storage = self.graph.storage(required.value)
                self.caller.append((min(required.until, last), self.block(storage)))
        self.sweep(index)
        self.caller = [(until, block) for until, block in self.caller if until > segment]
        there = {name for name, count in self.heap.blocks.items() if count}
        self.ran.kept.append(there - self.brought)

    def take(self, value: str) -> Block | View:
        """The tensor of this name. A view is taken through the views below it, and stays until its storage goes."""
        if value not in self.names:
            outside = self.graph.exists_outside.get(value)
            base = (
                self.graph.storage(value)
                if outside
                else next(o.inputs[0] for o in self.graph.makers[value] if self.graph.is_view(o))
            )
            self.names[value] = View(self.take(base))
        return self.names[value]

    def block(self, storage: str) -> Block:
        found = self.names[storage]
        assert isinstance(found, Block)
        return found

    def sweep(self, index: int) -> None:
        for storage in {self.graph.storage(name) for name in self.names}:
            if not read_later(self.graph, self.events, index, storage):
                self.forget(storage)

    def forget(self, storage: str) -> None:
        for name in [n for n in self.names if self.graph.storage(n) == storage]:
            del self.names[name]
