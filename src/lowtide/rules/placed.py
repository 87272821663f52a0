"""The gradient of a part of a tensor, added where that part lies.

A loop over time steps reads one step of a tensor after the other. For each of them autograd makes a tensor of zeros as large as the whole, with
the part's gradient in its place, and adds it to the sum of the others: for T steps that is T times the whole tensor's bytes, most of them
zeros. Here the part is added to the sum right away, and no zeros are made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["Placed", "added", "into"]

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
            found = added(graph, op, _AMONG_ZEROS)
            if found is not None and len(found[1].inputs) == 1:
                yield Proposal((into(graph, op, self.name, *found),))


def added(graph: Graph, op: Op, targets: Collection[str]) -> tuple[str, Op] | None:
    """Of a sum of two, one tensor and the op that makes the other, if it is one of these and nobody else reads what it makes."""
    if op.target != _ADD or not op.rerun or len(op.inputs) != 2:
        return None
    for total, other in (op.inputs, op.inputs[::-1]):
        makers = [m for m in graph.makers[other] if not m.rule]
        alone = [u.name for u in graph.users[other]] == [op.name]
        held = any(graph.storage(r.value) == other for r in graph.required)
        alike = graph.value[total].spec == graph.value[other].spec
        if len(makers) == 1 and alone and not held and alike:
            maker = makers[0]
            if maker.target in targets and maker.segment == op.segment:
                return total, maker
    return None


def into(graph: Graph, op: Op, rule: str, total: str, maker: Op) -> Op:
    """The sum without what the maker makes: its call says what is added, and does not run any more."""
    return replace(
        op, name=f"{op.name}.{rule}", target=f"lowtide.{rule}", inputs=(total, *maker.inputs), rule=rule, of=op.name,
        over=writable(graph, (total,), op.outputs[0]),
    )  # fmt: skip
