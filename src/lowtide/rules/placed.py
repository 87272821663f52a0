"""The gradient of a part of a tensor, added where that part lies.

A loop over time steps reads one step of a tensor after the other. For each of them autograd makes a tensor of zeros as large as the whole, with
the part's gradient in its place, and adds it to the sum of the others: for T steps that is T times the whole tensor's bytes, most of them
zeros. Here the part is added to the sum right away, and no zeros are made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["Placed"]

_ADD = "aten.add.Tensor"
_AMONG_ZEROS = ("aten.select_backward.default", "aten.slice_backward.default")


@dataclass(frozen=True)
class Placed:
    name: str = "placed"
    reason: str = "adds the gradient of a part where it lies, not a whole tensor of zeros around it"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target == _ADD and op.rerun and len(op.inputs) == 2:
                total, padded = op.inputs
                for sum_, whole in ((total, padded), (padded, total)):
                    maker = _pads(graph, op, whole)
                    if maker is not None and graph.value[sum_].spec == graph.value[whole].spec:
                        yield self.proposal(graph, op, sum_, maker)
                        break

    def proposal(self, graph: Graph, op: Op, total: str, maker: Op) -> Proposal:
        """`maker` says where the part lies: its call, which does not run any more, does."""
        placed = replace(
            op, name=f"{op.name}.{self.name}", target="lowtide.placed", inputs=(total, *maker.inputs), rule=self.name, of=op.name,
            over=writable(graph, (total,), op.outputs[0]),
        )  # fmt: skip
        return Proposal((placed,))


def _pads(graph: Graph, op: Op, whole: str) -> Op | None:
    """The op that puts a part among zeros, which only `op` reads."""
    makers = [m for m in graph.makers[whole] if not m.rule]
    if len(makers) != 1 or makers[0].target not in _AMONG_ZEROS or len(makers[0].inputs) != 1:
        return None
    alone = [u.name for u in graph.users[whole]] == [op.name]
    held = any(graph.storage(r.value) == whole for r in graph.required)
    return makers[0] if alone and not held and makers[0].segment == op.segment else None
