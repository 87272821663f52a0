"""Is this graph, or this program of it, well formed? The first thing that is not is named, with its numbers.

`check_graph` is run on what capture and every rule make, and on every file that is loaded; `check_program` on what
every planner returns. Everything behind them may then rely on it: names resolve, ops are listed in an order they
can run in, memory belongs to storages, and the captured ops alone are a whole step.

What a program keeps against a user's mark needs the simulator: see `sim/check.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lowtide.errors import GraphError, did_you_mean
from lowtide.ir.graph import Graph, Op, Outside, home_segment
from lowtide.ir.program import Program

__all__ = ["check_graph", "check_program"]


def check_graph(graph: Graph) -> None:
    """Raises `GraphError` for the first thing that is malformed."""
    _check_names(graph)
    _check_known(graph)
    _check_numbers(graph)
    _check_segments(graph)
    _check_values(graph)
    _check_outside(graph)
    for op in graph.ops:
        _check_flags(op)
        _check_outputs(graph, op)
    _check_makers(graph)
    _check_order(graph)
    _check_required(graph)


def _check_names(graph: Graph) -> None:
    for what, names in (
        ("value", [v.name for v in graph.values]),
        ("op", [o.name for o in graph.ops]),
        ("outside value", [o.value for o in graph.outside]),
    ):
        seen: set[str] = set()
        for position, name in enumerate(names):
            if not name:
                raise GraphError(f"{what} number {position} has an empty name")
            if name in seen:
                raise GraphError(f"{what} %{name} is listed twice")
            seen.add(name)


def _check_known(graph: Graph) -> None:
    for op in graph.ops:
        if "" in op.outputs:
            raise GraphError(f"op %{op.name} has an empty name for output {op.outputs.index('')}")
        _check_each_known(graph, op.inputs, f"op %{op.name} reads")
        _check_each_known(graph, op.outputs, f"op %{op.name} makes")
    for value in graph.values:
        _check_each_known(graph, (value.storage,), f"value %{value.name} lies in storage")
    _check_each_known(graph, (o.value for o in graph.outside), "outside lists")
    _check_each_known(graph, (r.value for r in graph.required), "required lists")


def _check_each_known(graph: Graph, names: Iterable[str], who: str) -> None:
    for name in names:
        if name not in graph.value:
            raise GraphError(
                f"{who} %{name}, which is no value{did_you_mean(name, [*graph.value])}"
            )


def _check_numbers(graph: Graph) -> None:
    for value in graph.values:
        if value.bytes < 0:
            raise GraphError(f"value %{value.name} has {value.bytes} bytes")
    for op in graph.ops:
        if not 0 <= op.seconds < math.inf:
            raise GraphError(f"op %{op.name} takes {op.seconds} seconds")
        if op.workspace < 0:
            raise GraphError(f"op %{op.name} has a workspace of {op.workspace} bytes")
        for name in op.over:
            _check_over(graph, op, name)
        for name in op.rows:
            if name not in op.inputs:
                raise GraphError(f"op %{op.name} goes by rows of %{name}, which it does not read")
    for kind, size in graph.held.items():
        if size < 0:
            raise GraphError(f"{size} bytes of {kind} are held")


def _check_over(graph: Graph, op: Op, name: str) -> None:
    what = f"op %{op.name} may write over %{name}"
    if name not in op.inputs:
        raise GraphError(f"{what}, which it does not read")
    if graph.is_view(op) or graph.value[name].is_view:
        raise GraphError(f"{what}: only for one whole storage by another")
    if name in graph.exists_outside or any(graph.storage(r.value) == name for r in graph.required):
        raise GraphError(f"{what}, which the caller may hold")
    if not op.outputs or graph.value[name].bytes != graph.value[op.outputs[0]].bytes:
        raise GraphError(f"{what}, which has another size than what it makes")


def _check_segments(graph: Graph) -> None:
    count = len(graph.segments)
    if not count:
        raise GraphError("the graph has no segments")
    for what, segment in (
        *((f"op %{o.name} is", o.segment) for o in graph.ops),
        *((f"outside value %{o.value} exists since its start", o.since) for o in graph.outside),
        *((f"value %{r.value} is required", r.segment) for r in graph.required),
    ):
        if not 0 <= segment < count:
            raise GraphError(f"{what} in segment {segment}, but there are {count}, from 0 on")
    before: Op | None = None
    for op in graph.captured:
        if before and op.segment < before.segment:
            raise GraphError(
                f"op %{op.name} of segment {op.segment} is listed after %{before.name} of segment {before.segment}: "
                "captured ops come in ascending order of segments"
            )
        before = op


def _check_values(graph: Graph) -> None:
    for value in graph.values:
        if value.is_view and graph.value[value.storage].is_view:
            raise GraphError(
                f"view %{value.name} lies in storage %{value.storage}, which is itself a view of "
                f"%{graph.storage(value.storage)}"
            )
        if value.is_view and value.bytes:
            raise GraphError(
                f"view %{value.name} of %{value.storage} has {value.bytes} bytes: a view weighs nothing itself"
            )
        if not graph.makers[value.name] and value.name not in graph.exists_outside:
            raise GraphError(f"value %{value.name} has no maker and does not exist outside")


def _check_outside(graph: Graph) -> None:
    for outside in graph.outside:
        if outside.since > outside.until:
            raise GraphError(
                f"outside value %{outside.value} exists since segment {outside.since} until segment {outside.until}"
            )
        storage = graph.storage(outside.value)
        below = graph.exists_outside.get(storage)
        if below is None:
            raise GraphError(
                f"outside value %{outside.value} is a view of %{storage}, which does not exist outside"
            )
        if below.owned != outside.owned:
            raise GraphError(
                f"outside value %{outside.value} says owned={outside.owned}, but its storage "
                f"%{below.value} owned={below.owned}"
            )


def _check_flags(op: Op) -> None:
    if op.rerun and op.effect:
        raise GraphError(f"op %{op.name} has an effect and says rerun=True: an effect happens once")
    if op.rule and op.effect:
        raise GraphError(
            f"op %{op.name} has an effect, but was added by rule {op.rule!r}: only captured ops may"
        )


def _check_outputs(graph: Graph, op: Op) -> None:
    if len(set(op.outputs)) < len(op.outputs):
        twice = next(o for o in op.outputs if op.outputs.count(o) > 1)
        raise GraphError(f"op %{op.name} makes %{twice} twice")
    read = {graph.storage(v) for v in op.inputs}
    for name in op.outputs:
        if name in op.inputs:
            raise GraphError(f"op %{op.name} makes %{name} from itself")
        storage = graph.storage(name)
        if storage != name and storage not in read and storage not in op.outputs:
            raise GraphError(
                f"op %{op.name} makes %{name}, a view of %{storage}, but neither reads nor makes %{storage}"
            )
    if len(read) > 1 and graph.is_view(op):
        names = ", ".join(f"%{s}" for s in sorted(read))
        raise GraphError(f"view op %{op.name} reads {len(read)} storages ({names}): a view has one")


def _check_makers(graph: Graph) -> None:
    """Among captured ops every value has one maker, and what exists outside has none."""
    maker = {v.name: "the caller" for v in graph.values if v.name in graph.exists_outside}
    for op in graph.captured:
        for name in op.outputs:
            if name in maker:
                raise GraphError(
                    f"value %{name} is made by {maker[name]} and again by captured op %{op.name}: "
                    "only a rule's op may be a second maker"
                )
            maker[name] = f"captured op %{op.name}"


def _check_order(graph: Graph) -> None:
    """Ops are listed so that each can run once those before it have; the captured ones without any rule's help."""
    first = {o.value: o.since for o in graph.outside}
    captured = set(first)
    for op in graph.ops:
        there = first if op.rule else captured
        for name in op.inputs:
            if name not in there:
                raise GraphError(f"{_titled(op)} reads %{name}, {_not_yet(graph, op, name)}")
            if first[name] > op.segment:
                raise GraphError(
                    f"{_titled(op)} may run in segment {op.segment}, but reads %{name}, which first exists in "
                    f"segment {first[name]}"
                )
            outside = _outside(graph, name)
            if outside and outside.until < op.segment and not op.rule:
                raise GraphError(
                    f"op %{op.name} of segment {op.segment} reads %{name}, which exists only until "
                    f"segment {outside.until}"
                )
        for name in op.outputs:
            first[name] = min(first.get(name, op.segment), op.segment)
        if not op.rule:
            captured.update(op.outputs)


def _titled(op: Op) -> str:
    return f"op %{op.name} of rule {op.rule!r}" if op.rule else f"op %{op.name}"


def _not_yet(graph: Graph, op: Op, name: str) -> str:
    makers = [m for m in graph.makers[name] if op.rule or not m.rule]
    if not makers:
        return "which no captured op makes"
    return f"which is made later, by %{makers[0].name}: ops are listed after what they read"


def _check_required(graph: Graph) -> None:
    made = {name: op.segment for op in graph.captured for name in op.outputs}
    for required in graph.required:
        name, segment = required.value, required.segment
        if required.until < segment:
            raise GraphError(
                f"value %{name} is required in segment {segment}, but held only until segment {required.until}"
            )
        outside = _outside(graph, name)
        if outside and not outside.since <= segment <= outside.until:
            raise GraphError(
                f"value %{name} is required at the end of segment {segment}, but {_lifetime(outside)}"
            )
        if name in graph.exists_outside:
            continue
        if name not in made:
            raise GraphError(
                f"value %{name} is required at the end of segment {segment}, but no captured op makes it"
            )
        if made[name] > segment:
            raise GraphError(
                f"value %{name} is required at the end of segment {segment}, but captured op "
                f"%{graph.makers[name][0].name} makes it in segment {made[name]}"
            )


def _outside(graph: Graph, name: str) -> Outside | None:
    """How long a value that is outside, or a view of one that is, may be read."""
    return graph.exists_outside.get(name) or graph.exists_outside.get(graph.storage(name))


def _lifetime(outside: Outside) -> str:
    return f"%{outside.value} exists from segment {outside.since} to segment {outside.until}"


def check_program(graph: Graph, program: Program) -> None:
    """Raises `GraphError` for the first thing that makes `program` no program of a well-formed `graph`."""
    if len(program.steps) != len(graph.segments):
        raise GraphError(
            f"the program has {len(program.steps)} segments, the graph has {len(graph.segments)}"
        )
    for segment, name in program:
        _check_place(graph, segment, name)
    _check_once(graph, program)
    _check_effects(graph, program)
    _check_reads(graph, program)


def _check_place(graph: Graph, segment: int, name: str) -> None:
    op = graph.op.get(name)
    if op is None:
        raise GraphError(
            f"the program runs %{name}, which is no op of the graph{did_you_mean(name, [*graph.op])}"
        )
    if graph.is_view(op):
        raise GraphError(f"the program runs view op %{name}: views are taken where they are read")
    if not home_segment(graph, op, segment):
        home, here = graph.segments[op.segment], graph.segments[segment]
        raise GraphError(
            f"op %{name} may not run in segment {segment} ({here.name}, piece {here.piece}): it was captured in "
            f"segment {op.segment} ({home.name}, piece {home.piece})"
        )


def _check_once(graph: Graph, program: Program) -> None:
    """Ops that may not run again run at most once, effects exactly once, all of them where they were captured."""
    for segment, name in program:
        op = graph.op[name]
        what = "has an effect" if op.effect else "has rerun=False"
        if (op.effect or not op.rerun) and segment != op.segment:
            raise GraphError(
                f"op %{name} {what} and runs in segment {segment}, but was captured in segment {op.segment}"
            )
        if (op.effect or not op.rerun) and program.counts[name] > 1:
            raise GraphError(f"op %{name} {what} and runs {program.counts[name]} times")
    for op in graph.ops:
        if op.effect and op.name not in program.counts:
            raise GraphError(f"op %{op.name} has an effect and does not run")


def _check_effects(graph: Graph, program: Program) -> None:
    captured = [o.name for o in graph.captured if o.effect]
    planned = [name for _, name in program if graph.op[name].effect]
    for first, second in zip(captured, planned):
        if first != second:
            raise GraphError(
                f"op %{second} has an effect and runs before %{first}, after which it was captured"
            )


def _check_reads(graph: Graph, program: Program) -> None:
    """Every storage that is read was made before, or exists outside there and then."""
    made: set[str] = set()
    for segment, names in enumerate(program.steps):
        where = f"segment {segment} ({graph.segments[segment].name})"
        for name in names:
            for value in graph.op[name].inputs:
                if not _readable(graph, value, segment, made):
                    raise GraphError(
                        f"op %{name} reads %{value} in {where}, but {_absent(graph, value)}"
                    )
            made.update(v for v in graph.op[name].outputs if not graph.value[v].is_view)
        for required in graph.required:
            if required.segment == segment and not _readable(graph, required.value, segment, made):
                raise GraphError(
                    f"value %{required.value} is required at the end of {where}, but {_absent(graph, required.value)}"
                )


def _readable(graph: Graph, value: str, segment: int, made: set[str]) -> bool:
    if graph.storage(value) in made:
        return True
    outside = _outside(graph, value)
    return outside is not None and outside.since <= segment <= outside.until


def _absent(graph: Graph, value: str) -> str:
    outside = _outside(graph, value)
    if outside:
        return _lifetime(outside)
    storage = graph.storage(value)
    return f"{'it' if storage == value else f'its storage %{storage}'} was not made before"
