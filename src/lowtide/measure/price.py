"""What do the ops of a captured graph cost? Fills seconds and workspaces in, measuring what the store does not know.

And which of the rules' ops may be used here? A form that the call does not have, or that gives other bits on this device than
the captured op, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms import (
    Added,
    Form,
    compared,
    form_of,
    without_formless,
    written_over,
)
from lowtide.cost.store import Cost, CostStore
from lowtide.ir.graph import Graph, Op
from lowtide.measure.density import with_room_as_counted
from lowtide.measure.probe import same_bits
from lowtide.measure.signature import signature
from lowtide.measure.timing import Call, measure_calls
from lowtide.rules.base import LESS_WORK, ONLY_FASTER, REMAKES

__all__ = ["other_bits", "price"]

_STATE_SECONDS = 5e-6
"""Reading or setting a generator's state: a few kilobytes copied."""
_COPIES = ("lowtide.copy", "lowtide.copy_back")
"""Into another layout, and back: of all else, the bits are compared."""
_ALIKE = 1.1
"""Two measurements of one kernel differ by so much."""
_CLEARLY = 0.85
"""What can be nothing but faster has to take at most so much of the captured op's time."""


def price(
    captured: Captured,
    graph: Graph,
    store: CostStore,
    progress: Callable[[int, int, int], None] | None = None,
    probed: Collection[str] = (),
    *,
    rounding: bool = False,
) -> Graph:
    """The graph with costs. `graph` is the captured one, possibly with more makers; `probed` are rules whose ops are to be
    compared with the captured ones, to the last bit but where `rounding` is allowed."""
    graph = with_room_as_counted(captured, without_formless(captured, graph))
    calls = {o.name: _timed(captured, graph, o) for o in graph.ops if _is_call(graph, o)}
    costs = measure_calls(list(calls.values()), store, progress=progress)
    other = other_bits(captured, graph, graph.ops, store, probed, rounding=rounding)
    graph = graph.without(other)
    graph = graph.without(_there_and_back(graph))
    priced = graph.with_ops(_priced(graph, o, calls, costs) for o in graph.ops)
    priced = priced.with_ops(_not_faster(priced))
    guessed = {o.name for o in priced.ops if o.name in calls and costs[calls[o.name].signature].how != "measured"}  # fmt: skip
    return priced.without(_outdone(priced, guessed))


def other_bits(
    captured: Captured,
    graph: Graph,
    ops: Iterable[Op],
    store: CostStore,
    probed: Collection[str],
    *,
    rounding: bool = False,
) -> set[str]:
    """Those of the ops, if they are of these rules, that do not give the captured op's bits on this device."""
    found: set[str] = set()
    for op in ops:
        if (
            op.rule in probed
            and op.target not in (*_COPIES, *REMAKES)
            and set(op.outputs) <= set(graph.op[op.of].outputs)
        ):
            plain, form, wanted = compared(captured, op)
            sink = graph.op[op.of]
            need = 3 * graph.bytes_of((*op.inputs, *op.outputs, *sink.inputs, *sink.outputs))
            if (
                not plain
                or not form
                or not same_bits(plain, form, wanted, _call, store, need, rounding=rounding)
            ):
                found.add(op.name)
    return found


def _there_and_back(graph: Graph) -> set[str]:
    """Copies that nobody reads but to copy back."""
    idle = {
        op.outputs[0]
        for op in graph.ops
        if op.target == _COPIES[0]
        and all(u.target == _COPIES[1] for u in graph.users[op.outputs[0]])
    }
    return {o.name for o in graph.ops if o.target in _COPIES and idle & {*o.inputs, *o.outputs}}


def _outdone(graph: Graph, guessed: Collection[str] = ()) -> set[str]:
    """Ops of rules beside which there is another that makes the same from less, in no more time or memory. `guessed`: ops whose times were not
    measured, so that they are not said to be faster."""
    gone = {
        op.name
        for op in graph.ops
        if op.rule in ONLY_FASTER
        and (op.name in guessed or op.seconds > _CLEARLY * graph.op[op.of].seconds)
    }
    forms: dict[tuple[str, ...], list[Op]] = {}
    for op in graph.ops:
        if op.rule:
            forms.setdefault(op.outputs, []).append(op)
    for found in forms.values():
        for one in found:
            gone.update(
                other.name
                for other in found
                if one.workspace <= other.workspace and _from_less(one, other)
            )
    return gone


def _from_less(one: Op, other: Op) -> bool:
    if set(one.inputs) < set(other.inputs):
        return one.seconds <= other.seconds * _ALIKE
    better = (one.workspace, one.seconds, one.name) < (other.workspace, other.seconds, other.name)
    return set(one.inputs) == set(other.inputs) and one.seconds <= other.seconds and better


def _not_faster(graph: Graph) -> Iterable[Op]:
    """Another form of an op is not faster than it: where measurements say so it is mostly noise, and a planner would find all of
    it. Parts that make together what an op makes take as long as it; other kernels for a part take as long as that part. Rules that
    leave out work are believed, and what is made from a copy is no form of what made the original."""
    parts: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.rule == "split":
            parts.setdefault(op.of, []).append(op)
    least = {(o.name, o.outputs): o.seconds for o in graph.captured}
    for name, found in parts.items():
        factor = max(1.0, graph.op[name].seconds / max(sum(p.seconds for p in found), 1e-9))
        least |= {(name, p.outputs): p.seconds * factor for p in found}
    for op in graph.ops:
        free = (
            not LESS_WORK.isdisjoint((op.rule, op.target))
            or op.target == _COPIES[0]
            or op.target in REMAKES
        )
        floor = 0.0 if free else least.get((op.of, op.outputs), 0.0)
        yield replace(op, seconds=max(op.seconds, floor))


def _is_call(graph: Graph, op: Op) -> bool:
    return not graph.is_view(op) and op.target != "lowtide.generator_state"


def _timed(captured: Captured, graph: Graph, op: Op) -> Call:
    """What is small beside the tensor that it is written into is timed like that: a copy of it would take all the time."""
    form = _form(captured, op)
    if op.rule in ("outer", "placed") and op.over:
        return _call(written_over(form, captured.tensors[op.over[0]]))
    return replace(_call(form), made=graph.bytes_of(op.outputs))


def _form(captured: Captured, op: Op) -> Form:
    form = form_of(captured, op)
    assert form is not None, f"{op.name} has no form, and was to be left out"
    return form


def _call(form: Form) -> Call:
    args, kwargs = form.arguments(lambda node: node.meta.get("val"), _fake)
    return Call(signature(form.target, args, kwargs), form.target, args, kwargs)


def _fake(added: Added) -> torch.Tensor:
    tensor = next(n for n in added.form.args if isinstance(n, fx.Node)).meta["val"]
    with tensor.fake_mode:
        made: torch.Tensor = added.make(lambda node: node.meta["val"])
    return made


def _priced(graph: Graph, op: Op, calls: Mapping[str, Call], costs: Mapping[str, Cost]) -> Op:
    call = calls.get(op.name)
    if call is None:
        return replace(
            op, seconds=_STATE_SECONDS if op.target == "lowtide.generator_state" else 0.0
        )
    cost = costs[call.signature]
    extra = 4 * _STATE_SECONDS if op.rule == "replay" else 0.0
    workspace = max(cost.workspace, _beside(graph, op))
    return replace(op, seconds=cost.seconds + extra, workspace=workspace, signature=call.signature)


def _beside(graph: Graph, op: Op) -> int:
    """Bytes that a copy in place needs, which is not how it was measured: those of one sample."""
    if not op.over or op.target not in _COPIES:
        return 0
    copied = graph.value[op.outputs[0]]
    return copied.bytes // max(copied.shape[0], 1)
