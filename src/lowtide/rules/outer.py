"""A column times a row, added without ever existing.

Attention by a loop over steps gives the gradient of what is attended to as a sum of products of a column and a row, one per step. Each product is as large
as the whole, and each of its numbers is one multiplication: so it is done while it is added.

Where one multiplication is rounded once, as anywhere but in kernels of reduced precision, the bits are the same; a probe says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.placed import added, into

__all__ = ["Outer"]

_PRODUCTS = ("aten.mm.default", "aten.bmm.default")


@dataclass(frozen=True)
class Outer:
    name: str = "outer"
    reason: str = "adds the product of a column and a row without making it"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            found = added(graph, op, _PRODUCTS)
            if found is not None and _is_outer(graph, found[1]):
                yield Proposal((into(graph, op, self.name, *found),))


def _is_outer(graph: Graph, product: Op) -> bool:
    return len(product.inputs) == 2 and graph.value[product.inputs[0]].shape[-1:] == (1,)
