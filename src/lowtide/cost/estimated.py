"""What would every op of a graph cost on a device that is not here?

Goes in: a `Graph` and a device's data sheet. Comes out: the same graph with the seconds and workspaces of `cost/analytic.py`. All it
knows of an op is its name and the dtypes and shapes of its values, so a graph that was captured without running anything, or read
from a file, can be priced for any sheet.

Workspaces are known for the CPU only, where kernels copy their operands into layouts of their own. On other devices kernels work within the
memory they are given, and none is counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from lowtide.cost.analytic import Device, Spec, estimate
from lowtide.cost.store import Cost
from lowtide.ir.graph import Graph, Op, Value

__all__ = ["estimated"]

_GATHERS = ("aten.embedding.", "aten.index.", "aten.gather.", "aten.index_select.")
"""They read as much of their table as they return, not all of it."""
_RECURRENT = re.compile(r"lowtide\.\w+_layer(_backward)?\.")


def estimated(graph: Graph, device: Device) -> Graph:
    """With estimated seconds and workspaces; views are free."""
    known: dict[tuple[object, ...], Cost] = {}

    def priced(op: Op) -> Op:
        if graph.is_view(op):
            return replace(op, seconds=0.0, workspace=0)
        inputs = tuple(_spec(graph.value[name]) for name in op.inputs)
        outputs = tuple(_spec(graph.value[name]) for name in op.outputs)
        key = (op.target, inputs, outputs)
        cost = known.get(key)
        if cost is None:
            cost = known[key] = _cost(op.target, inputs, outputs, device)
        workspace = cost.workspace if device.name == "cpu" else 0
        return replace(op, seconds=cost.seconds, workspace=workspace)

    return graph.with_ops(map(priced, graph.ops))


def _cost(target: str, inputs: Sequence[Spec], outputs: Sequence[Spec], device: Device) -> Cost:
    if target.startswith(_GATHERS) and inputs and outputs:
        inputs = (outputs[0], *inputs[1:])
    recurrent = _RECURRENT.match(target)
    if recurrent is None:
        return estimate(target, inputs, outputs, device)
    return estimate(target, inputs, outputs, device, _recurrent(inputs, bool(recurrent[1])))


def _recurrent(inputs: Sequence[Spec], backward: bool) -> float:
    """Every weight matrix times every vector of every time step; in backward for the gradients of both."""
    steps = next((s.shape[0] * s.shape[1] for s in inputs if len(s.shape) == 3), 1)
    weights = sum(s.count for s in inputs if len(s.shape) == 2 and s.shape[0] >= s.shape[1])
    return (4.0 if backward else 2.0) * steps * weights


def _spec(value: Value) -> Spec:
    match = re.fullmatch(r"([a-z0-9_]+)\[([\d, ]*)\]", value.spec)
    if match is None:
        return Spec("u8", (value.bytes,))
    shape = tuple(int(size) for size in match[2].split(",") if size.strip())
    return Spec(match[1], shape)
