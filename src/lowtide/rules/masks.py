"""Backward from a bit per element, where that is all it asks.

ReLU, hardtanh and leaky ReLU only ask on which side an element fell; dropout, whether it was dropped. The bits are made as soon as
the tensor is there, and kept in its place. From dropout's bits its output can be made again, too: one pass, and no random numbers, which
take ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["Masks"]

_ONE_BIT = (
    "aten.threshold_backward.default",
    "aten.hardtanh_backward.default",
    "aten.leaky_relu_backward.default",
    "aten.native_dropout_backward.default",
)
"""Of (gradient, what decides), both of one size."""
_DROPOUT = ("aten.native_dropout.default", "lowtide.dropout.default")


@dataclass(frozen=True)
class Masks:
    name: str = "mask"
    reason: str = "keeps a bit per element where backward only asks on which side it fell"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target in _ONE_BIT and op.rerun and len(op.inputs) == 2:
                decides = _original(graph, graph.value[op.inputs[1]])
                made = graph.makers[decides.name]
                if made and made[0].segment < op.segment:
                    yield self.packed(graph, op, decides, made[0])

    def packed(self, graph: Graph, op: Op, decides: Value, maker: Op) -> Proposal:
        name = f"{op.name}.bits"
        count = decides.elements
        bits = Value(name, (count + 7) // 8, name, Kind.ACTIVATION, decides.layer, f"u8[{(count + 7) // 8}]")  # fmt: skip
        pack = Op(
            f"{op.name}.pack", "lowtide.pack", (decides.name,), (name,), maker.segment,
            layer=maker.layer, source=maker.source, rule=self.name, of=maker.name,
        )  # fmt: skip
        inputs = (op.inputs[0], name)
        masked = replace(
            op, name=f"{op.name}.masked", inputs=inputs, rule=self.name, of=op.name,
            over=writable(graph, op.inputs[:1], op.outputs[0]),
        )  # fmt: skip
        again = [self.dropped_again(graph, op, maker, name)] if maker.target in _DROPOUT else []
        return Proposal((pack, masked, *again), (bits,))

    def dropped_again(self, graph: Graph, op: Op, maker: Op, bits: str) -> Op:
        """What dropout left."""
        given, output = maker.inputs[0], maker.outputs[0]
        return replace(
            maker, name=f"{op.name}.dropped", target="lowtide.dropped", inputs=(given, bits), outputs=(output,),
            rerun=True, effect=False, rule=self.name, of=maker.name,
            over=writable(graph, (given,), output),
        )  # fmt: skip


def _original(graph: Graph, value: Value) -> Value:
    """What a view that changes nothing is of: that is there earlier."""
    whole = graph.value[value.storage]
    return whole if whole.spec == value.spec else value
