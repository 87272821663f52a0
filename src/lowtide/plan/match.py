"""Is this plan a plan of that graph? If not, what is the first difference, by layer name?"""

from __future__ import annotations

from lowtide.errors import PlanMismatchError
from lowtide.ir.graph import Graph, Op
from lowtide.ir.json import graph_hash
from lowtide.units import format_bytes

__all__ = ["check_match", "first_difference", "shrinks"]


def check_match(planned: Graph, captured: Graph) -> None:
    if graph_hash(planned) != graph_hash(captured):
        raise PlanMismatchError(
            f"the plan was made for another graph: {first_difference(planned, captured)}\n"
            "     try   lowtide.fit(model, args, budget=...) to plan this model and batch"
        )


def first_difference(planned: Graph, captured: Graph) -> str:
    for mine, theirs in zip(planned.ops, captured.ops, strict=False):
        if (mine.name, mine.target, mine.inputs, mine.outputs) != (
            theirs.name, theirs.target, theirs.inputs, theirs.outputs,
        ):  # fmt: skip
            return f"at {_place(theirs)} the plan has {_call(mine)}, the model has {_call(theirs)}"
        for one, other in zip(mine.outputs, theirs.outputs, strict=True):
            a, b = planned.value[one], captured.value[other]
            if (a.bytes, a.spec) != (b.bytes, b.spec):
                return (
                    f"at {_place(theirs)} %{one} is {a.spec} ({format_bytes(a.bytes)}) in the plan and "
                    f"{b.spec} ({format_bytes(b.bytes)}) in the model"
                )
        if (mine.rerun, mine.effect) != (theirs.rerun, theirs.effect):
            return f"at {_place(theirs)} {theirs.target} may run again in only one of them"
    if len(planned.ops) != len(captured.ops):
        longer = max(planned.ops, captured.ops, key=len)
        extra = longer[min(len(planned.ops), len(captured.ops))]
        owner = "plan" if longer is planned.ops else "model"
        return f"{len(planned.ops)} ops in the plan, {len(captured.ops)} in the model; only the {owner} has {_call(extra)} at {_place(extra)}"
    return "inputs or required outputs differ"


def _place(op: Op) -> str:
    return f"layer {op.layer}" if op.layer else f"op {op.name}"


def _call(op: Op) -> str:
    return f"%{', %'.join(op.outputs)} = {op.target}({', '.join('%' + i for i in op.inputs)})"


def shrinks(graph: Graph, planned: Graph) -> bool:
    """Is it the same step with nothing larger in it? Then a program of the other runs it within the other's peak."""
    return (
        _shape(graph) == _shape(planned)
        and [_op_shape(o) for o in graph.ops] == [_op_shape(o) for o in planned.ops]
        and all(a.bytes <= b.bytes for a, b in zip(graph.values, planned.values))
    )


def _shape(graph: Graph) -> object:
    values = [(v.name, v.storage, v.keep) for v in graph.values]
    return (graph.segments, values, graph.outside, graph.required)


def _op_shape(op: Op) -> object:
    return (op.name, op.target, op.inputs, op.outputs, op.segment, op.rerun, op.effect)
