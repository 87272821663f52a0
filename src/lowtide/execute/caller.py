"""What does the caller's own code need between the graphs of a step? Counted as ops of the step.

A loss outside the model, gradient clipping, the optimizer's update: they run between two segments, where nothing of ours runs, and the memory they
take then is measured. `with_caller` writes it into the graph as ops with a workspace: one at the start of a segment, which everything that reads a
gradient from outside waits for, and one at the end of the last. They plan like any op; `without_caller` takes them out again before
anything is lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.ir.program import Program

__all__ = ["AFTER", "BEFORE", "with_caller", "without_caller"]

BEFORE, AFTER = "lowtide.caller_before", "lowtide.caller_after"


def with_caller(graph: Graph, before: Mapping[int, int], after: int = 0) -> Graph:
    """`before`: for a segment the bytes that the caller's code takes before it, besides what is there when it starts; `after`: the
    same once the last is over."""
    for segment, size in before.items():
        if size > 0:
            graph = _with_before(graph, segment, size)
    return _with_after(graph, after) if after > 0 else graph


def _with_before(graph: Graph, segment: int, size: int) -> Graph:
    name = _name(graph, segment, "caller")
    arriving = {graph.storage(o.value) for o in graph.outside if not o.owned and o.until == segment}
    op = Op(name, BEFORE, (), (name,), segment, workspace=size, rerun=False, effect=True)
    done = Value(name, 0, name, Kind.OTHER)
    ops: list[Op] = []
    for other in graph.ops:
        if op not in ops and other.segment >= segment:
            ops.append(op)
        waits = not graph.is_view(other) and any(graph.storage(i) in arriving for i in other.inputs)
        ops.append(replace(other, inputs=(*other.inputs, name)) if waits else other)
    if op not in ops:
        ops.append(op)
    return replace(graph, values=(*graph.values, done), ops=tuple(ops))


def _with_after(graph: Graph, size: int) -> Graph:
    last = len(graph.segments) - 1
    made = [r.value for r in graph.required if r.segment == last and r.until > last]
    op = Op(
        _name(graph, last, "update"), AFTER, tuple(made), (), last,
        workspace=size, rerun=False, effect=True,
    )  # fmt: skip
    return replace(graph, ops=(*graph.ops, op))


def _name(graph: Graph, segment: int, what: str) -> str:
    """In a step of several runs names begin with the run's number."""
    several = len({s.piece for s in graph.segments}) > 1
    run = f"{graph.segments[segment].piece}/" if several else ""
    return f"{run}{what} {segment}"


def without_caller(graph: Graph, program: Program) -> tuple[Graph, Program]:
    ours = {o.name for o in graph.ops if o.target in (BEFORE, AFTER)}
    if not ours:
        return graph, program
    left = replace(
        graph,
        values=tuple(v for v in graph.values if v.name not in ours),
        ops=tuple(_plain(o, ours) for o in graph.ops if o.name not in ours),
    )
    return left, Program(tuple(tuple(n for n in s if n not in ours) for s in program.steps))


def _plain(op: Op, ours: set[str]) -> Op:
    if ours.isdisjoint(op.inputs):
        return op
    return replace(op, inputs=tuple(i for i in op.inputs if i not in ours))
