"""How do the graphs of one step share one budget? They become one `Graph`, and the way back is here too.

A step whose model breaks into several captured graphs runs forward 0 .. forward N-1, the caller's loss, backward N-1 .. backward 0;
one of several models may run them in another order, which is then given (`Run.home`). `merge` puts N runs of captured graphs into one graph with 2N segments, names prefixed by the run's number (`0/relu`,
`1/relu`). A storage that one run passes to another, forward outputs on the way up and gradients on the way down, is
counted once: the receiving value becomes a view of the passed one, made by an op `lowtide.passed`. What is passed was seen
in a real step (`execute/survey.py`); where that is not certain, the storage is counted twice.

`part` is the inverse: the graph of one run as it was captured, and its share of a program. A captured graph that ran more than once
in a step has one program, which `tied.py` picks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lowtide.execute.caller import without_caller
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.ir.program import Program

__all__ = ["PASSED", "Part", "Run", "graph_number", "home_of", "merge", "part", "runs_of"]

PASSED = "lowtide.passed"
FORWARD, BACKWARD = 0, 1
FOREVER = 10**9


@dataclass(frozen=True)
class Run:
    """One run of a captured graph, with the storages seen in it: a key is one storage, in whichever run it shows."""

    number: int
    """Of the captured graph, in the order of capture."""
    graph: Graph
    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)
    tangents: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, int] = field(default_factory=dict)
    trains: Mapping[str, str] = field(default_factory=dict)
    """For a gradient the input it belongs to."""
    until: Mapping[str, int] = field(default_factory=dict)
    """For a required value the last segment at whose start somebody besides the graphs was seen holding it."""
    home: tuple[int, int] | None = None
    """The segments of its forward and backward; None: all forwards come first, and backwards in reverse."""


@dataclass(frozen=True)
class Part:
    graph: Graph
    """As it was captured."""
    program: Program
    handed: frozenset[str]
    """Forward outputs that nobody holds any more when this graph's backward begins."""


def merge(runs: Sequence[Run], known: frozenset[int] = frozenset()) -> Graph:
    """One graph for the whole step. `known`: storages that the caller holds and has counted: parameters, batch."""
    if len(runs) == 1:
        return runs[0].graph
    return _Merging(runs, known).run()


class _Merging:
    def __init__(self, runs: Sequence[Run], known: frozenset[int]) -> None:
        self.runs, self.known, self.count = runs, known, len(runs)
        self.home = [r.home or (i, 2 * self.count - 1 - i) for i, r in enumerate(runs)]
        self.order = sorted((s, i) for i, home in enumerate(self.home) for s in home)
        self.backwards = sorted(home[BACKWARD] for home in self.home)
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.outside: list[Outside] = []
        self.required: list[Required] = []
        self.root: dict[str, str] = {}
        """For a storage of a run, the storage it is in the merged graph."""
        self.passed: dict[str, str] = {}
        """For a value that another run passes, that run's name for it."""
        self.made: dict[int, str] = {}
        """What forwards handed out, by storage."""
        self.sent: dict[int, str] = {}
        """What backwards handed out."""
        self.owned: dict[int, str] = {}
        self.trained: set[str] = set()

    def run(self) -> Graph:
        segments: list[Segment] = []
        for segment, index in self.order:
            run, forward = self.runs[index], segment == self.home[index][FORWARD]
            if forward:
                self.link_inputs(index, run)
                self.put_values(index, run)
                self.note(index, run, run.outputs, self.made)
            else:
                self.link_tangents(index, run)
                self.note(index, run, run.gradients, self.sent)
            name = "forward" if forward else "backward"
            segments.append(Segment(f"{name} {run.number}", index))
        for index, run in enumerate(self.runs):
            self.put_ops(index, run)
            self.put_outside(index, run)
        for index in sorted(range(self.count), key=lambda i: self.home[i][BACKWARD]):
            self.put_required(index, self.runs[index])
        return Graph(
            values=tuple(self.settled(v) for v in self.values.values()),
            ops=tuple(sorted(self.ops, key=lambda o: o.segment)),
            segments=tuple(segments),
            outside=tuple(self.outside),
            required=tuple(self.required),
        )

    def segment(self, index: int, local: int) -> int:
        return self.home[index][local]

    def backward_began(self, index: int) -> int:
        """The first of the backwards that ran in a row up to this one's."""
        segment = self.home[index][BACKWARD]
        while segment - 1 in self.backwards:
            segment -= 1
        return segment

    def link_inputs(self, index: int, run: Run) -> None:
        """What this run is given that an earlier one made, or was given too."""
        taken: set[str] = set()
        for storage, aliases in _inputs(run.graph).items():
            name, key = _name(index, storage), run.inputs.get(storage)
            if key is None or any(o.until < BACKWARD for o in aliases):
                continue
            root = self.made.get(key) or self.owned.get(key)
            size = run.graph.value[storage].bytes
            if root is None:
                self.owned[key] = name
            elif self.bytes(root) == size and self.storage(root) not in taken:
                taken.add(self.storage(root))
                self.root[name] = self.storage(root)
                if key in self.made:
                    self.passed.update((_name(index, o.value), root) for o in aliases)

    def link_tangents(self, index: int, run: Run) -> None:
        taken: set[str] = set()
        for outside in run.graph.outside:
            if outside.owned or run.graph.value[outside.value].is_view:
                continue
            name, key = _name(index, outside.value), run.tangents.get(outside.value)
            made = self.sent.get(key) if key is not None else None
            if (
                made is not None
                and self.bytes(made) == self.values[name].bytes
                and self.storage(made) not in taken
            ):
                taken.add(self.storage(made))
                self.passed[name] = made
                self.root[name] = self.storage(made)

    def note(self, index: int, run: Run, seen: Mapping[str, int], handed: dict[int, str]) -> None:
        """What this run hands on. What was handed to it is nothing new."""
        for value, key in seen.items():
            if run.graph.storage(value) not in run.graph.exists_outside:
                handed.setdefault(key, _name(index, value))

    def storage(self, name: str) -> str:
        below = self.values[name].storage
        return self.root.get(below, below)

    def bytes(self, name: str) -> int:
        return self.values[self.storage(name)].bytes

    def put_values(self, index: int, run: Run) -> None:
        for value in run.graph.values:
            key = run.inputs.get(value.name)
            strange = value.kind is Kind.BATCH and key is not None and key not in self.known
            kind = Kind.OTHER if strange else value.kind
            name = _name(index, value.name)
            self.values[name] = replace(
                value, name=name, storage=_name(index, value.storage), kind=kind
            )

    def settled(self, value: Value) -> Value:
        storage = self.storage(value.name)
        return value if storage == value.storage else replace(value, storage=storage, bytes=0)

    def put_ops(self, index: int, run: Run) -> None:
        for name, given in self.passed.items():
            outside = run.graph.exists_outside.get(name.partition("/")[2])
            if outside is not None and name == _name(index, outside.value):
                where = self.segment(index, outside.since)
                self.ops.append(Op(name, PASSED, (given,), (name,), where))
        for op in run.graph.ops:
            self.ops.append(
                replace(
                    op,
                    name=_name(index, op.name),
                    inputs=tuple(_name(index, i) for i in op.inputs),
                    over=tuple(_name(index, i) for i in op.over),
                    rows=tuple(_name(index, i) for i in op.rows),
                    outputs=tuple(_name(index, o) for o in op.outputs),
                    segment=self.segment(index, op.segment),
                    of=_name(index, op.of) if op.of else "",
                )
            )

    def put_outside(self, index: int, run: Run) -> None:
        for outside in run.graph.outside:
            name = _name(index, outside.value)
            if name in self.passed:
                continue
            # A gradient from somewhere else may have been waiting since backward began.
            since = self.home[index][FORWARD] if outside.owned else self.backward_began(index)
            until = self.segment(index, min(outside.until, BACKWARD))
            self.outside.append(Outside(name, since, until, outside.owned))

    def put_required(self, index: int, run: Run) -> None:
        for required in run.graph.required:
            name, local = _name(index, required.value), required.segment
            segment = self.segment(index, local)
            until = FOREVER
            if local == FORWARD:
                until = self.held_until(run, required, segment)
            elif self.passes_on(index, run, required.value):
                until = max(segment, run.until.get(required.value, FOREVER))
            self.required.append(Required(name, segment, until))

    def held_until(self, run: Run, required: Required, segment: int) -> int:
        """The frames that pass a value on hold it until the next backward."""
        if required.until == FORWARD:
            return segment
        frames = next(b for b in self.backwards if b > segment) - 1
        return max(frames, segment + 1, run.until.get(required.value, FOREVER))

    def passes_on(self, index: int, run: Run, gradient: str) -> bool:
        """Is it the gradient of what another run made, or one more of a parameter's? Then it is not what `.grad` holds."""
        source = run.trains.get(gradient)
        if source is None:
            return False
        name = _name(index, source)
        if name in self.passed:
            return True
        again = self.storage(name) in self.trained
        self.trained.add(self.storage(name))
        return again


def _name(index: int, name: str) -> str:
    return f"{index}/{name}"


def _inputs(graph: Graph) -> dict[str, list[Outside]]:
    """The caller's storages, each with everything outside that lies in it."""
    found: dict[str, list[Outside]] = {}
    for outside in graph.outside:
        if outside.owned:
            found.setdefault(graph.storage(outside.value), []).append(outside)
    return found


# The way back.


def runs_of(graph: Graph) -> int:
    return len({s.piece for s in graph.segments})


def home_of(graph: Graph, run: int) -> tuple[int, int]:
    """The segments of a run's forward and backward."""
    forward, backward = (i for i, s in enumerate(graph.segments) if s.piece == run)
    return forward, backward


def graph_number(graph: Graph, run: int) -> int:
    """The captured graph that a run is a run of."""
    name = graph.segments[home_of(graph, run)[FORWARD]].name
    return int(name.rpartition(" ")[2]) if runs_of(graph) > 1 else 0


def part(graph: Graph, program: Program, run: int) -> Part:
    """One run's graph as captured, and what of the program is its own."""
    graph, program = without_caller(graph, program)
    if runs_of(graph) == 1:
        return Part(graph, program, frozenset())
    prefix = f"{run}/"
    home = home_of(graph, run)
    mine = [v for v in graph.values if v.name.startswith(prefix)]
    owner: dict[str, str] = {}
    for value in mine:
        owner.setdefault(value.storage, value.name)
    values = tuple(_local(graph, v, owner[v.storage], prefix) for v in mine)
    required = [r for r in graph.required if r.value.startswith(prefix)]
    local = Graph(
        values=values,
        ops=tuple(_local_op(o, home, prefix) for o in graph.ops if _is_own(o, prefix)),
        outside=tuple(_local_outside(graph, mine, home, prefix)),
        required=tuple(_local_required(r, home, prefix) for r in sorted(required, key=_place)),
    )
    steps = tuple(tuple(n.removeprefix(prefix) for n in program.steps[s]) for s in home)
    handed = frozenset(
        r.value.removeprefix(prefix)
        for r in required
        if r.segment == home[0] and r.until < home[1] and r.until != home[0]
    )
    return Part(local, Program(steps), handed)


def _place(required: Required) -> int:
    return required.segment


def _is_own(op: Op, prefix: str) -> bool:
    return op.name.startswith(prefix) and op.target != PASSED


def _local(graph: Graph, value: Value, owner: str, prefix: str) -> Value:
    size = graph.value[value.storage].bytes if owner == value.name else 0
    return replace(
        value,
        name=value.name.removeprefix(prefix),
        storage=owner.removeprefix(prefix),
        bytes=size,
    )


def _local_op(op: Op, home: tuple[int, int], prefix: str) -> Op:
    return replace(
        op,
        name=op.name.removeprefix(prefix),
        inputs=tuple(i.removeprefix(prefix) for i in op.inputs),
        over=tuple(i.removeprefix(prefix) for i in op.over),
        rows=tuple(i.removeprefix(prefix) for i in op.rows),
        outputs=tuple(o.removeprefix(prefix) for o in op.outputs),
        segment=home.index(op.segment),
        of=op.of.removeprefix(prefix),
    )


def _local_outside(
    graph: Graph, mine: Sequence[Value], home: tuple[int, int], prefix: str
) -> Iterable[Outside]:
    for value in mine:
        name = value.name.removeprefix(prefix)
        outside = graph.exists_outside.get(value.name)
        if outside is not None and outside.owned:
            yield Outside(name, FORWARD, home.index(outside.until))
        elif outside is not None:
            yield Outside(name, BACKWARD, BACKWARD, owned=False)
        else:
            passed = [o for o in graph.makers[value.name] if o.target == PASSED]
            if passed:
                since = home.index(passed[0].segment)
                yield Outside(name, since, BACKWARD, owned=since == FORWARD)


def _local_required(required: Required, home: tuple[int, int], prefix: str) -> Required:
    segment = home.index(required.segment)
    mutation = segment == FORWARD and required.until == home[0]
    return Required(required.value.removeprefix(prefix), segment, FORWARD if mutation else FOREVER)
