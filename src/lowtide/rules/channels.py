"""Batch norm's backward a few channels at a time.

Each channel is normalised by itself, so its gradient needs no other. The kernel works in memory as large as its operands; for a few channels that is
little. And as channels are done with one after another, the input's gradient can be written over the output's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["Channels"]

_TARGET = "aten.native_batch_norm_backward.default"
_WORTH = 8
"""For the ops that make the peak: with at least this part of the largest one's bytes."""


@dataclass(frozen=True)
class Channels:
    name: str = "channels"
    reason: str = "makes a batch norm's gradients a few channels at a time, over the gradient they are made from"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True
    least: int = 2**20
    """Bytes below which a tensor is not worth a loop."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        largest = max((_size(graph, op) for op in graph.captured), default=0)
        for op in graph.captured:
            if op.target == _TARGET and op.rerun and self.pays(graph, op, largest):
                over = writable(graph, op.inputs[:1], op.outputs[0])
                yield Proposal((replace(op, name=f"{op.name}.channels", rule=self.name, of=op.name, over=over),))  # fmt: skip

    def pays(self, graph: Graph, op: Op, largest: int) -> bool:
        made = graph.value[op.outputs[0]]
        whole = made.spec == graph.value[op.inputs[0]].spec
        return whole and made.bytes >= self.least and _size(graph, op) * _WORTH >= largest


def _size(graph: Graph, op: Op) -> int:
    return graph.bytes_of((*op.inputs, *op.outputs))
