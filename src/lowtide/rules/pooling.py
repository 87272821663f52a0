"""Max-pool backward without its input, from packed indices, and together with that of the ReLU before the pool.

ATen asks for the input to know its sizes, and keeps an int64 for each window. The four bits are made from these; or the pool itself makes them, by a kernel
that looks at many windows at once and so takes a fraction of ATen's time.

Of a ReLU whose output goes into a pool, backward reads that output, or a bit of each element, to block gradients; and those come from the pool. At a
window's maximum it is the pool's output, which tells as well, and is a quarter as large or less. So both gradients are one op, which reads
neither the ReLU's output nor a bit of it, and the gradient between them never exists. The same holds for a hardtanh. A leaky ReLU multiplies, and where windows
overlap the sum of products has other bits than the product of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal

__all__ = ["BLOCKING", "POOLED", "SAME", "Pools"]

POOLED = "lowtide.max_pool"
"""The target of ops that make the result and the four bits at once."""

_FORWARD = "aten.max_pool2d_with_indices.default"
_BACKWARD = "aten.max_pool2d_with_indices_backward.default"
_HARDTANH = ("aten.hardtanh.default", "aten.hardtanh_backward.default")
BLOCKING = ("aten.threshold_backward.default", _HARDTANH[1])
"""Backward of what lets a gradient through or does not: reads the gradient, and what decides."""
SAME = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default", "detach.default", "view.default", "_unsafe_view.default", "reshape.default",
        "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "clone.default",
    )
)  # fmt: skip
"""They make the same elements in the same order."""


@dataclass(frozen=True)
class Pools:
    name: str = "pool"
    reason: str = "makes the gradient of a max-pool, and of a ReLU before it, without their inputs, from four bits per window"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target != _BACKWARD or not op.rerun or len(op.inputs) != 3:
                continue
            gradient, _, indices = op.inputs
            yield Proposal((self.form(op, "without_input", (gradient, indices)),))
            maker = next(iter(graph.makers[graph.storage(indices)]), None)
            if maker is None:
                continue
            block = _block(graph, maker, op)
            if block is not None:
                read = (gradient, maker.outputs[0], indices)
                yield Proposal((self.form(block, "from_indices", read),))
            if maker.segment < op.segment:
                yield self.packed(graph, op, maker, block)

    def packed(self, graph: Graph, op: Op, maker: Op, block: Op | None) -> Proposal:
        gradient, _, indices = op.inputs
        value = graph.value[indices]
        columns = value.shape[-1] if value.shape else 1
        size = value.elements // max(columns, 1) * ((columns + 1) // 2)
        name = f"{op.name}.packed"
        packed = Value(name, size, name, Kind.ACTIVATION, value.layer, f"u8[{size}]")
        pack = Op(
            f"{op.name}.pack", "lowtide.pack", (indices,), (name,), maker.segment,
            layer=maker.layer, source=maker.source, rule=self.name, of=maker.name,
        )  # fmt: skip
        forms = [self.form(op, "from_packed", (gradient, name))]
        if maker.target == _FORWARD and maker.outputs[1:] == (indices,):
            made = (maker.outputs[0], name)
            forms.insert(0, replace(maker, name=f"{op.name}.pooled", target=POOLED, outputs=made, rule=self.name, of=maker.name))  # fmt: skip
        if block is not None:
            read = (gradient, maker.outputs[0], name)
            forms.append(self.form(block, "from_packed", read))
        return Proposal((pack, *forms), (packed,))

    def form(self, op: Op, what: str, inputs: tuple[str, ...]) -> Op:
        return replace(op, name=f"{op.name}.{what}", inputs=inputs, rule=self.name, of=op.name)


def _block(graph: Graph, pool: Op, backward: Op) -> Op | None:
    """Of backward, the op that alone reads the pool's gradient, and blocks it where the pool's output tells."""
    _, given, indices = (_original(graph, name) for name in backward.inputs)
    if pool.target != _FORWARD or indices not in pool.outputs or given != _original(graph, pool.inputs[0]):  # fmt: skip
        return None
    block = _only_reader(graph, backward.outputs[0])
    if block is None or block.target not in BLOCKING or not block.rerun or len(block.inputs) != 2:
        return None
    gradient, decides = (_original(graph, name) for name in block.inputs)
    activation = next(iter(graph.makers[given]), None)
    hard = activation is not None and (activation.target, block.target) == _HARDTANH
    tell = {given, _original(graph, activation.inputs[0])} if activation and hard else {given}
    return block if gradient == backward.outputs[0] and decides in tell else None


def _only_reader(graph: Graph, name: str) -> Op | None:
    names = {v.name for v in graph.values if v.storage == name}
    readers = {o.name: o for n in names for o in graph.users[n] if not graph.is_view(o)}
    required = any(r.value in names for r in graph.required)
    return None if required or len(readers) != 1 else next(iter(readers.values()))


def _original(graph: Graph, name: str) -> str:
    """What this is a view or a copy of, in the same order."""
    makers = graph.makers[name]
    while makers and makers[0].target in SAME:
        name = makers[0].inputs[0]
        makers = graph.makers[name]
    return name
