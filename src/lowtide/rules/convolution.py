"""Convolution backward in parts, and each part by whichever kernel needs least.

- **Split**: one op for the input's gradient, one for the parameters'. Each can run when it suits and only if it is wanted; a
  parameter gradient that is larger than what it is made from can wait until the end. The kernels are the ones the joint op
  calls, so the bits are the same.
- **Transposed**: the input's gradient is the transposed convolution of the output's. Unlike the backward op it does not ask for
  the input, which may be long gone.
- **Channels last**: the parameters' gradients from channels-last copies. Kernels for plain tensors first copy both operands
  into a layout of their own, as workspace, while the originals wait; here each original can go as soon as it is copied, or is
  copied in place, sample by sample, and back again where it is still needed.
- **Parts**: the same from copies in parts of their channels, one pair of parts after another: the layout that a kernel copies into is needed
  for one pair at a time.

The last three call other kernels, or for other sizes, so they are exact only where a probe on the device says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = [
    "ChannelParts",
    "ChannelsLast",
    "SplitBackward",
    "Transposed",
    "parameter_gradients",
    "parts_of",
]

_TARGET = "aten.convolution_backward.default"
_WORTH = 8
"""Other layouts are for the ops that make the peak: with at least this part of the largest one's bytes."""
_MOST_PARTS = 4
_PART = 16
"""Channels that kernels treat together, so that a part has a multiple of them."""


@dataclass(frozen=True)
class SplitBackward:
    name: str = "split"
    reason: str = "makes a convolution's input gradient and its parameter gradients separately"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in _backwards(graph):
            if _makes_input_gradient(graph, op):
                # The parameters' first: then their input may go.
                parameters = _form(op, self.name, "parameters", outputs=op.outputs[1:])
                yield Proposal((parameters, _form(op, self.name, "input", outputs=op.outputs[:1])))


@dataclass(frozen=True)
class Transposed:
    name: str = "transposed"
    reason: str = "makes a convolution's input gradient without its input"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in _backwards(graph):
            if _makes_input_gradient(graph, op):
                read = (op.inputs[0], op.inputs[2])
                yield Proposal((_form(op, self.name, self.name, read, op.outputs[:1]),))


@dataclass(frozen=True)
class ChannelsLast:
    name: str = "channels_last"
    reason: str = (
        "makes a convolution's parameter gradients from channels-last copies, without workspace"
    )
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        return _from_copies(graph, self.name)


@dataclass(frozen=True)
class ChannelParts:
    name: str = "parts"
    reason: str = "makes a convolution's parameter gradients a part of the channels after another, with less workspace"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        return _from_copies(graph, self.name, _in_parts)


def parts_of(channels: int) -> int:
    """How many: 1 for too few channels."""
    return max(n for n in range(1, _MOST_PARTS + 1) if n == 1 or channels % (n * _PART) == 0)


def _in_parts(gradient: Value, given: Value, weight: Value) -> bool:
    """A plain convolution, without groups, of enough channels."""
    plain = len(weight.shape) == 4 and weight.shape[:2] == (gradient.shape[1], given.shape[1])
    return plain and parts_of(weight.shape[0]) * parts_of(weight.shape[1]) > 1


def _from_copies(
    graph: Graph, rule: str, suits: Callable[[Value, Value, Value], bool] = lambda *_: True
) -> Iterator[Proposal]:
    """Parameters' gradients from copies of both operands in another layout."""
    found = list(_backwards(graph))
    largest = max((graph.bytes_of((*op.inputs, *op.outputs)) for op in found), default=0)
    for op in found:
        gradient, given, weight = (graph.value[v] for v in op.inputs[:3])
        made = parameter_gradients(graph, op)
        small = graph.bytes_of((*op.inputs, *op.outputs)) * _WORTH < largest
        if small or not made or gradient.is_view or given.is_view:
            continue
        if suits(gradient, given, weight):
            copies = [_copied(op, value, rule) for value in (given, gradient)]
            read = (copies[1].name, copies[0].name, weight.name)
            ops = [
                copy
                for value, copied in zip((given, gradient), copies, strict=True)
                for copy in _copies(graph, op, value, copied, rule)
            ]
            yield Proposal((*ops, _form(op, rule, rule, read, made)), tuple(copies))


def _copies(graph: Graph, op: Op, value: Value, copied: Value, rule: str) -> Iterator[Op]:
    over = writable(graph, (value.name,), value.name)
    there = _form(op, rule, f"{value.name}.{rule}", (value.name,), (copied.name,))
    yield replace(there, target="lowtide.copy", over=over)
    if over:
        maker = graph.makers[value.name][0]
        back = _form(op, rule, f"{value.name}.{rule}.back", (copied.name,), (value.name,))
        yield replace(back, target="lowtide.copy_back", of=maker.name, over=(copied.name,))


def _copied(op: Op, value: Value, rule: str) -> Value:
    name = f"{op.name}.{value.name}.{rule}"
    return replace(value, name=name, storage=name, kind=Kind.TEMPORARY, layer=op.layer)


def _form(
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


def _backwards(graph: Graph) -> Iterator[Op]:
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
