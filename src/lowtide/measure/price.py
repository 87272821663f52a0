"""What do the ops of a captured graph cost? Fills seconds and workspaces in, measuring what the store does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms import Form, form_of
from lowtide.cost.store import Cost, CostStore
from lowtide.ir.graph import Graph, Op
from lowtide.measure.signature import signature
from lowtide.measure.timing import Call, measure_calls

__all__ = ["price"]

_STATE_SECONDS = 5e-6
"""Reading or setting a generator's state: a few kilobytes copied."""


def price(
    captured: Captured,
    graph: Graph,
    store: CostStore,
    progress: Callable[[int, int, int], None] | None = None,
) -> Graph:
    """The graph with costs. `graph` is the captured one, possibly with more makers."""
    calls = {o.name: _call(form_of(captured, o)) for o in graph.ops if _is_call(graph, o)}
    costs = measure_calls(list(calls.values()), store, progress=progress)
    priced = graph.with_ops(_priced(o, calls, costs) for o in graph.ops)
    return priced.with_ops(_not_cheaper_in_parts(priced))


def _not_cheaper_in_parts(graph: Graph) -> Iterable[Op]:
    """Ops that together make what a captured op makes are not faster than it. Where measurements say so it is noise, and a
    planner would find all of it."""
    parts: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.of and set(op.outputs) < set(graph.op[op.of].outputs):
            parts.setdefault(op.of, []).append(op)
    factor = {
        name: max(1.0, graph.op[name].seconds / max(sum(p.seconds for p in found), 1e-9))
        for name, found in parts.items()
    }
    for op in graph.ops:
        part = op.of in factor and op in parts[op.of]
        yield replace(op, seconds=op.seconds * factor[op.of]) if part else op


def _is_call(graph: Graph, op: Op) -> bool:
    return not graph.is_view(op) and op.target != "lowtide.generator_state"


def _call(form: Form) -> Call:
    def value(leaf: fx.Node) -> Any:
        return leaf.meta.get("val")

    args, kwargs = fx.map_arg(form.args, value), fx.map_arg(form.kwargs, value)
    return Call(signature(form.target, args, kwargs), form.target, args, kwargs)


def _priced(op: Op, calls: Mapping[str, Call], costs: Mapping[str, Cost]) -> Op:
    call = calls.get(op.name)
    if call is None:
        return replace(
            op, seconds=_STATE_SECONDS if op.target == "lowtide.generator_state" else 0.0
        )
    cost = costs[call.signature]
    extra = 4 * _STATE_SECONDS if op.rule == "replay" else 0.0
    return replace(
        op, seconds=cost.seconds + extra, workspace=cost.workspace, signature=call.signature
    )
