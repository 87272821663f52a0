"""Max-pool backward without its input, and from packed indices.

ATen asks for the input to know its sizes, and keeps an int64 for each window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal

__all__ = ["Pools"]

_TARGET = "aten.max_pool2d_with_indices_backward.default"


@dataclass(frozen=True)
class Pools:
    name: str = "pool"
    reason: str = "makes a max-pool's gradient without its input, from four bits per window"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target != _TARGET or not op.rerun or len(op.inputs) != 3:
                continue
            gradient, _, indices = op.inputs
            yield Proposal((self.form(op, "without_input", (gradient, indices)),))
            made = graph.makers.get(graph.storage(indices), ())
            if made and made[0].segment < op.segment:
                yield self.packed(graph, op, made[0])

    def packed(self, graph: Graph, op: Op, maker: Op) -> Proposal:
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
        return Proposal((pack, self.form(op, "from_packed", (gradient, name))), (packed,))

    def form(self, op: Op, what: str, inputs: tuple[str, ...]) -> Op:
        return replace(op, name=f"{op.name}.{what}", inputs=inputs, rule=self.name, of=op.name)
