"""What was each allocation of a recorded step, from when to when did it live, and who made it?

Goes in: events in the order of time (`measure/events.py`) with marks in between: a layer begins or ends, a line of the user's code
runs, a captured graph runs, gradients are at these addresses. Comes out: one `Life` for each allocation.

- *Op.* The outermost op that is not merely a name for others (`aten::linear` is `aten::addmm`), as capture names them.
- *Layer and line.* In forward from the marks. In backward from the forward op of the same number: autograd counts its nodes. In a
  graph that we lowered, from its nodes.
- *Workspace.* Released before its op ended. *Kept.* Made outside backward, and still there when the next backward began.

What nothing of this tells has no op, layer or line: `measure/profiling.py` calls it other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch

from lowtide.ir.graph import Kind
from lowtide.measure.events import Event, What

__all__ = ["Batch", "Enter", "Exit", "Gone", "GraphNode", "GraphRuns", "Held", "Known", "Life", "Line", "Lives", "Phase", "Step"]  # fmt: skip

_ENGINE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"## (\d+) ##")
_FACTORIES = ("aten::empty", "aten::new_empty", "aten::zeros", "aten::new_zeros")


class Enter(NamedTuple):
    layer: str


class Exit(NamedTuple):
    pass


class Line(NamedTuple):
    source: str


class Phase(NamedTuple):
    name: str


class Step(NamedTuple):
    pass


class Batch(NamedTuple):
    addresses: frozenset[int]


class Held(NamedTuple):
    """By address what was there before the recording: bytes, kind, layer."""

    found: Mapping[int, tuple[int, str, str]]


class Known(NamedTuple):
    """At these addresses is this kind of data now, of these layers."""

    kind: str
    layers: Mapping[int, str]


class Gone(NamedTuple):
    """What was there before the recording and has been released: the allocator does not report that."""

    addresses: frozenset[int]


class GraphNode(NamedTuple):
    layer: str
    source: str
    encodes: bool


class GraphRuns(NamedTuple):
    """A lowered graph begins, or (None) ends. Each of its nodes runs within an op called by its number."""

    nodes: Sequence[GraphNode] | None


@dataclass(slots=True, eq=False)
class Life:
    address: int
    bytes: int
    start: int
    """Nanoseconds."""
    end: int | None = None
    op: str = ""
    layer: str = ""
    source: str = ""
    kind: str = ""
    """Where a mark told it."""
    backward: bool = False
    workspace: bool = False
    kept: bool = False
    encoded: bool = False


@dataclass(slots=True, eq=False)
class _Frame:
    """A running op."""

    name: str
    sequence: int
    engine: bool
    makes: list[Life] = field(default_factory=list)


class _Origin(NamedTuple):
    layer: str
    source: str


class Lives:
    """Feed it every event; `all` are the lives, in the order of their beginnings."""

    def __init__(self) -> None:
        self.all: list[Life] = []
        self.open: dict[int, Life] = {}
        self.stacks: dict[int, list[_Frame]] = {}
        self.layers: list[str] = []
        self.line = ""
        self.nodes: Sequence[GraphNode] | None = None
        self.node = -1
        self.origins: dict[int, _Origin] = {}
        self.fresh: list[Life] = []
        """Made outside backward since the last one began."""
        self.steps: list[int] = []
        self.phases: list[tuple[str, int]] = []
        self.updating = False
        """An optimizer runs."""
        self.now = 0
        self.peaks: list[int] = []

    def run(self, events: Iterable[Event]) -> Lives:
        handlers = {
            What.BEGIN: self.begin,
            What.END: self.end,
            What.MEMORY: self.memory,
            What.MARK: self.mark,
        }
        for event in events:
            handlers[event.what](event)
        return self

    # Ops.

    def begin(self, event: Event) -> None:
        stack = self.stacks.setdefault(event.thread, [])
        engine = event.name.startswith(_ENGINE)
        if engine:
            self.backward_runs(event.time)
        elif event.sequence >= 0 and not any(frame.engine for frame in stack):
            self.origins[event.sequence] = self.here()
        if self.nodes is not None and (number := _NODE.fullmatch(event.name)):
            self.node = int(number[1])
        stack.append(_Frame(event.name, event.sequence, engine))

    def end(self, event: Event) -> None:
        stack = self.stacks.get(event.thread)
        if stack:
            stack.pop()

    def after_engine(self, stack: Sequence[_Frame]) -> Sequence[_Frame]:
        last = max((i for i, frame in enumerate(stack) if frame.engine), default=-1)
        return stack[last + 1 :]

    def backward_runs(self, time: int) -> None:
        if not self.phases or self.phases[-1][0] != "backward":
            self.phases.append(("backward", time))
        for life in self.fresh:
            life.kept = life.end is None
        self.fresh.clear()

    # Memory.

    def memory(self, event: Event) -> None:
        gone = self.open.pop(event.address, None)
        if gone is not None:
            self.close(gone, event)
        if event.bytes > 0:
            self.born(event)

    def close(self, life: Life, event: Event) -> None:
        life.end = event.time
        self.now -= life.bytes
        frames = self.stacks.get(event.thread, ())
        life.workspace = any(life in frame.makes for frame in frames)

    def born(self, event: Event) -> None:
        stack = self.stacks.get(event.thread, [])
        life = Life(event.address, event.bytes, event.time)
        frame = _maker(self.after_engine(stack))
        if frame is not None:
            life.op = _label(frame.name)
            if _is_op(frame.name):
                frame.makes.append(life)
        life.backward = any(f.engine for f in stack)
        life.layer, life.source = self.origin(stack)
        node = self.running_node()
        if node is not None:
            life.encoded = node.encodes
        self.all.append(life)
        self.open[life.address] = life
        if not life.backward and not self.updating:
            self.fresh.append(life)
        self.now += life.bytes
        if self.peaks:
            self.peaks[-1] = max(self.peaks[-1], self.now)

    def origin(self, stack: Sequence[_Frame]) -> _Origin:
        node = self.running_node()
        if node is not None:
            return _Origin(node.layer, node.source)
        engine = next((f for f in reversed(stack) if f.engine), None)
        if engine is not None and not self.layers:
            return self.origins.get(engine.sequence, _Origin("", ""))
        return self.here()

    def here(self) -> _Origin:
        return _Origin(self.layers[-1] if self.layers else "", self.line)

    def running_node(self) -> GraphNode | None:
        if self.nodes is None or not 0 <= self.node < len(self.nodes):
            return None
        return self.nodes[self.node]

    # Marks.

    def mark(self, event: Event) -> None:
        match event.mark:
            case Enter(layer):
                self.layers.append(layer)
            case Exit():
                if self.layers:
                    self.layers.pop()
            case Line(source):
                self.line = source
            case Phase(name):
                self.updating = name == "optimizer"
                if not self.phases or self.phases[-1][0] != name:
                    self.phases.append((name, event.time))
            case Step():
                self.steps.append(event.time)
                self.peaks.append(self.now)
            case GraphRuns(nodes):
                self.nodes, self.node = nodes, -1
            case Batch(addresses):
                self.batch(addresses)
            case Held(found):
                self.held(found)
            case Known(kind, layers):
                self.known(kind, layers)
            case Gone(addresses):
                self.gone(addresses, event)

    def batch(self, addresses: frozenset[int]) -> None:
        for address in addresses:
            life = self.open.get(address)
            if life is not None and not life.kind and not life.layer:
                life.kind = Kind.BATCH

    def held(self, found: Mapping[int, tuple[int, str, str]]) -> None:
        """Where nothing was allocated meanwhile, it has been there all the time."""
        for address, (size, kind, layer) in found.items():
            if address in self.open:
                self.known(kind, {address: layer})
                continue
            life = Life(address, size, 0, kind=kind, layer=layer)
            self.open[address] = life
            self.all.append(life)
            self.now += size
            self.peaks = [peak + size for peak in self.peaks]

    def known(self, kind: str, layers: Mapping[int, str]) -> None:
        if kind == Kind.OPTIMIZER:  # told when an update has ended
            self.updating = False
        for address, layer in layers.items():
            life = self.open.get(address)
            if life is not None and not life.kind:
                life.kind, life.layer = kind, layer

    def gone(self, addresses: frozenset[int], event: Event) -> None:
        for address in addresses:
            life = self.open.get(address)
            if life is not None and life.start == 0:
                self.close(self.open.pop(address), event)


def _maker(frames: Sequence[_Frame]) -> _Frame | None:
    """The outermost op that is an op of its own, or the one for which it only allocates; else the innermost whatever it is."""
    for index, frame in enumerate(frames):
        if _is_op(frame.name) and not _composite(frame.name):
            only_allocates = frame.name.startswith(_FACTORIES)
            before = frames[index - 1] if index and only_allocates else frame
            return before if _is_op(before.name) else frame
    return frames[-1] if frames else None


def _label(name: str) -> str:
    """Of what is no op: a compiled graph, a node of ours, or what autograd or the user calls it."""
    if name.startswith("##"):
        return "compiled graph" if "CompiledFxGraph" in name else ""
    return name


@cache
def _is_op(name: str) -> bool:
    space, _, op = name.partition("::")
    return bool(op) and space not in ("autograd", "torch", "profiler") and " " not in name


@cache
def _composite(name: str) -> bool:
    """Is it merely a name for other ops, as autograd sees it?"""
    space, _, op = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, space), op)
        overloads = [o for o in packet.overloads() if "out" not in o and "Dimname" not in o]
        names = [name if o == "default" else f"{name}.{o}" for o in overloads]
        key = "CompositeImplicitAutograd"
        return all(torch._C._dispatch_has_kernel_for_dispatch_key(n, key) for n in names)
    except (AttributeError, RuntimeError):
        return False
