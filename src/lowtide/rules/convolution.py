"""A convolution's backward as two ops.

- **Split**: one op for the input's gradient, one for the parameters'. Each can run when it suits and only if it is wanted; a
  parameter gradient that is larger than what it is made from can wait until the end. The kernels are the ones the joint op
  calls, so the bits are the same.
- **Transposed**: the input's gradient is the transposed convolution of the output's. Unlike the backward op it does not ask for
  the input, which may be long gone. It is another kernel, so it is exact only where a probe on the device says so.
- **Shares**: the parameters' gradients of one thread's samples after the other's, on one thread. It takes longer, and of what the kernel
  copies only a share is there at once. Exact where the probe says so: threads mostly share samples.

Parameters' gradients from copies in other layouts are in `rules/layouts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal

__all__ = [
    "Shares",
    "SplitBackward",
    "Transposed",
    "backwards",
    "form",
    "large",
    "parameter_gradients",
]

_TARGET = "aten.convolution_backward.default"
_WORTH = 8
"""For the ops that make the peak: with at least this part of the largest one's bytes."""


@dataclass(frozen=True)
class SplitBackward:
    name: str = "split"
    reason: str = "makes a convolution's input gradient and its parameter gradients separately"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in backwards(graph):
            if _makes_input_gradient(graph, op):
                # The parameters' first: then their input may go.
                parameters = form(op, self.name, "parameters", outputs=op.outputs[1:])
                yield Proposal((parameters, form(op, self.name, "input", outputs=op.outputs[:1])))


@dataclass(frozen=True)
class Transposed:
    name: str = "transposed"
    reason: str = "makes a convolution's input gradient without its input"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in backwards(graph):
            if _makes_input_gradient(graph, op):
                read = (op.inputs[0], op.inputs[2])
                yield Proposal((form(op, self.name, self.name, read, op.outputs[:1]),))


@dataclass(frozen=True)
class Shares:
    name: str = "shares"
    reason: str = "makes a convolution's parameter gradients a share of the samples after another, with less workspace"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in large(graph):
            made = parameter_gradients(graph, op)
            if made:
                yield Proposal((form(op, self.name, self.name, op.inputs[:3], made),))


def large(graph: Graph) -> Iterator[Op]:
    """Those backward ops that make the peak."""
    found = list(backwards(graph))
    most = max((graph.bytes_of((*op.inputs, *op.outputs)) for op in found), default=0)
    return (o for o in found if graph.bytes_of((*o.inputs, *o.outputs)) * _WORTH >= most)


def form(
    op: Op,
    rule: str,
    what: str,
    inputs: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] = (),
) -> Op:
    read = op.inputs if inputs is None else inputs
    return replace(
        op, name=f"{op.name}.{what}", inputs=read, outputs=outputs, rule=rule, of=op.name
    )


def backwards(graph: Graph) -> Iterator[Op]:
    for op in graph.captured:
        if op.target == _TARGET and op.rerun and len(op.inputs) >= 3 and op.outputs:
            yield op


def _makes_input_gradient(graph: Graph, op: Op) -> bool:
    """Its outputs are the gradients of input, weight and bias, each only if wanted; told apart by their shapes."""
    _, given, weight = (graph.value[v].spec for v in op.inputs[:3])
    made = [graph.value[v].spec for v in op.outputs]
    return len(made) >= 2 and made[0] == given and made[1] == weight


def parameter_gradients(graph: Graph, op: Op) -> tuple[str, ...]:
    """Of a convolution's backward, the outputs besides the input's gradient."""
    if _makes_input_gradient(graph, op):
        return op.outputs[1:]
    alone = graph.value[op.outputs[0]].spec == graph.value[op.inputs[2]].spec
    return op.outputs if alone else ()
