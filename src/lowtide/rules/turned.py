"""A matrix product with its matrices the other way round.

What is X W^T with the batch outermost is W X^T with the batch innermost. A BLAS does the same multiplications for both, but at another
speed: which one is faster depends on sizes, library and processor. So each product has a second form, made the other way round and turned at its
boundary, where nothing else notices. It is offered where it was measured to be clearly faster, turning included.

The paper EcoRNN does this for the fully-connected layers of an LSTM. `nn.autotune` chooses for whole LSTM layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal

__all__ = ["Turned"]

_PRODUCTS = ("aten.mm.default", "aten.addmm.default")


@dataclass(frozen=True)
class Turned:
    name: str = "turned"
    reason: str = "multiplies two matrices the other way round, where that is faster"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True
    least: int = 2**14
    """Bytes of a result below which turning it is not worth a thought."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target in _PRODUCTS and op.rerun and self.is_large(graph, op):
                yield Proposal((replace(op, name=f"{op.name}.{self.name}", rule=self.name, of=op.name),))  # fmt: skip

    def is_large(self, graph: Graph, op: Op) -> bool:
        made = graph.value[op.outputs[0]]
        return made.bytes >= self.least and min(made.shape, default=0) > 1
