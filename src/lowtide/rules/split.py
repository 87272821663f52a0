"""Convolution backward as two ops: one for the input's gradient, one for the parameters'.

Each can run when it suits and only if it is wanted; a parameter gradient that is larger than what it is made from can wait
until the end. The kernels are the ones the joint op calls, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness

__all__ = ["SplitBackward"]

_TARGET = "aten.convolution_backward.default"


@dataclass(frozen=True)
class SplitBackward:
    name: str = "split"
    reason: str = "makes a convolution's input gradient and its parameter gradients separately"
    exactness: Exactness = Exactness.EXACT

    def propose(self, graph: Graph) -> Iterable[Op]:
        for op in graph.captured:
            if op.target == _TARGET and _starts_with_input_gradient(graph, op):
                yield self.part(op, "input", op.outputs[:1])
                yield self.part(op, "parameters", op.outputs[1:])

    def part(self, op: Op, what: str, outputs: tuple[str, ...]) -> Op:
        return replace(op, name=f"{op.name}.{what}", outputs=outputs, rule=self.name, of=op.name)


def _starts_with_input_gradient(graph: Graph, op: Op) -> bool:
    """Its outputs are the gradients of input, weight and bias, each only if wanted; told apart by their shapes."""
    if len(op.outputs) < 2 or len(op.inputs) < 3:
        return False
    _, given, weight = (graph.value[v].spec for v in op.inputs[:3])
    first, second = (graph.value[v].spec for v in op.outputs[:2])
    return first == given and second == weight
