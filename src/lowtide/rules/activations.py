"""Backward from what is there anyway: hardtanh and leaky ReLU ask on which side of a threshold their input fell, and their output, which the next op
mostly keeps, tells it as well. An activation that was written in place even keeps a copy of its input for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["FromOutput", "original"]

_FORWARD = {
    "aten.hardtanh_backward.default": "aten.hardtanh.default",
    "aten.leaky_relu_backward.default": "aten.leaky_relu.default",
}


@dataclass(frozen=True)
class FromOutput:
    name: str = "from_output"
    reason: str = "makes an activation's gradient from its output instead of its input"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        forward = {
            (o.target, original(graph, o.inputs[0])): o
            for o in graph.captured
            if o.target in _FORWARD.values()
        }
        for op in graph.captured:
            if op.target in _FORWARD and op.rerun and len(op.inputs) == 2:
                made = forward.get((_FORWARD[op.target], original(graph, op.inputs[1])))
                if made is not None:
                    read = (op.inputs[0], made.outputs[0])
                    name = f"{op.name}.{self.name}"
                    over = writable(graph, read[:1], op.outputs[0])
                    form = replace(op, name=name, inputs=read, rule=self.name, of=op.name, over=over)  # fmt: skip
                    yield Proposal((form,))


def original(graph: Graph, name: str) -> str:
    """The storage that a value is a plain copy of, or its own."""
    storage = graph.storage(name)
    makers = graph.makers.get(storage, ())
    while makers and makers[0].target == "aten.clone.default":
        storage = graph.storage(makers[0].inputs[0])
        makers = graph.makers.get(storage, ())
    return storage
