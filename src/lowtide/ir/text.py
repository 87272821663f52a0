"""How does a graph, or a program of it, read on a terminal and in a diff?

    %relu_3: f32[8, 64] 2.00 KiB = aten.relu.default(%add_2)   # mlp.1, 1.2 ms, ws 0 B

One line per op, segments as headings, what comes from outside on top. `format_graph` lists what could run; with a
program it also says how often each op does. `format_program` lists what runs, in order, with a `free` line wherever
a storage goes, by the rules of `ir/program.py`; a test holds it to what the simulator says.
"""

from __future__ import annotations

from collections import defaultdict

from lowtide.ir.graph import Graph, Op, Outside
from lowtide.ir.program import Program
from lowtide.ir.storages import fold
from lowtide.units import format_bytes, format_seconds

__all__ = ["format_graph", "format_program"]


def format_graph(graph: Graph, program: Program | None = None) -> str:
    """Every op under the segment it was captured in, with its costs."""
    lines = [_summary(graph), "", "outside:"]
    lines += [f"  {_outside(graph, o)}" for o in graph.outside]
    lines += [f"  {kind} {format_bytes(size)}, untouched" for kind, size in graph.held.items()]
    for segment in range(len(graph.segments)):
        lines += ["", _heading(graph, segment)]
        lines += [
            f"  {_call(graph, op)}   # {_facts(graph, op, program)}"
            for op in graph.ops
            if op.segment == segment
        ]
        lines += _required(graph, segment)
    return "\n".join(lines) + "\n"


def format_program(graph: Graph, program: Program) -> str:
    """What runs, in order, and where each storage goes. Give it `Timeline.program`: every op listed is taken to run."""
    frees = _frees(graph, program)
    seen: set[str] = set()
    lines: list[str] = []
    for segment, names in enumerate(program.steps):
        lines += ["", _heading(graph, segment)] if segment else [_heading(graph, segment)]
        for index, name in enumerate(names):
            op = graph.op[name]
            marks = ["again"] if name in seen else []
            if op.rule:
                marks.append(f"rule {op.rule}")
            lines.append(f"  {_call(graph, op)}{'   # ' if marks else ''}{', '.join(marks)}")
            gone = sorted(frees.get((segment, index), ()))
            lines += [f"    free %{s}  {format_bytes(graph.value[s].bytes)}" for s in gone]
            seen.add(name)
        lines += _required(graph, segment)
    return "\n".join(lines) + "\n"


def _summary(graph: Graph) -> str:
    added = len(graph.ops) - len(graph.captured)
    rules = f" + {added} from rules" if added else ""
    return f"graph: {len(graph.captured)} ops{rules}, {len(graph.values)} values, {len(graph.segments)} segments"


def _heading(graph: Graph, segment: int) -> str:
    one = graph.segments[segment]
    pieces = {s.piece for s in graph.segments}
    return f"segment {segment} {one.name}{f' (piece {one.piece})' if len(pieces) > 1 else ''}:"


def _outside(graph: Graph, outside: Outside) -> str:
    value = graph.value[outside.value]
    last = len(graph.segments) - 1
    facts = [value.kind.value]
    if outside.since > 0:
        facts.append(f"from segment {outside.since}")
    if outside.until < last:
        facts.append(f"until segment {outside.until}")
    if not outside.owned:
        facts.append("goes with its last use")
    return f"{_made(graph, outside.value)}   # {', '.join(facts)}"


def _made(graph: Graph, name: str) -> str:
    """`%relu_3: f32[8, 64] 2.00 KiB`; of a view, `view of %x` in place of the size."""
    value = graph.value[name]
    size = f"view of %{value.storage}" if value.is_view else format_bytes(value.bytes)
    return f"%{name}: {value.spec} {size}" if value.spec else f"%{name}: {size}"


def _call(graph: Graph, op: Op) -> str:
    made = ", ".join(_made(graph, o) for o in op.outputs)
    # A value's maker need not bear its name: a rule's op and an op with several outputs never do.
    label = "" if op.outputs == (op.name,) else f"[{op.name}] "
    inputs = ", ".join(f"%{i}" for i in op.inputs)
    return f"{label}{made}{' = ' if made else ''}{op.target}({inputs})"


def _facts(graph: Graph, op: Op, program: Program | None) -> str:
    facts = [op.layer] if op.layer else []
    if graph.is_view(op):
        facts.append("view")
    else:
        facts += [format_seconds(op.seconds), f"ws {format_bytes(op.workspace)}"]
    if op.effect:
        facts.append("effect")
    elif not op.rerun:
        facts.append("runs once")
    if op.rule:
        facts.append(f"rule {op.rule}")
    if op.over:
        facts.append("over " + " or ".join(f"%{name}" for name in op.over))
    if op.source:
        facts.append(op.source)
    if program is not None and not graph.is_view(op):
        times = program.counts.get(op.name, 0)
        facts.append("not in the program" if not times else f"x{times}")
    return ", ".join(facts)


def _required(graph: Graph, segment: int) -> list[str]:
    last = len(graph.segments) - 1
    return [
        f"  required %{r.value}" + (f" until segment {r.until}" if r.until < last else "")
        for r in graph.required
        if r.segment == segment
    ]


def _frees(graph: Graph, program: Program) -> dict[tuple[int, int], list[str]]:
    """The storages that go after each op, by its segment and place in it."""
    folded = fold(graph)
    frees: dict[tuple[int, int], list[str]] = defaultdict(list)
    touched: dict[str, tuple[int, int]] = {}
    """Where the newest copy of each storage was made or read last, unless the caller holds that copy."""
    held: dict[str, int] = {}
    """Until the end of which segment the caller holds the newest copy."""
    for segment, names in enumerate(program.steps):
        for index, name in enumerate(names):
            for storage in folded.reads[name]:
                if storage not in folded.owned and held.get(storage, -1) < segment:
                    touched[storage] = (segment, index)
            for storage in folded.makes[name]:
                held.pop(storage, None)
                if storage in touched:
                    frees[touched[storage]].append(storage)
                touched[storage] = (segment, index)
        for required in graph.required:
            if required.segment == segment:
                storage = graph.storage(required.value)
                held[storage] = max(required.until, held.get(storage, -1))
                touched.pop(storage, None)
    for storage, place in touched.items():
        frees[place].append(storage)
    return frees
