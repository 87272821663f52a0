"""A convolution's parameter gradients from copies of its operands in another layout, by kernels that need less memory beside them.

- **Channels last**: kernels for plain tensors first copy both operands into a layout of their own, as workspace, while the originals wait;
  from channels-last copies they need none, and each original can go as soon as it is copied, or is copied in place, sample by
  sample, and back again where it is still needed.
- **Parts**: copies in parts of their channels, one pair of parts after another: the layout that a kernel copies into is needed for one
  pair at a time. An input that is itself a convolution's output need not be there at all: a part of its channels is made from what that
  convolution reads and a part of its weights, when the part is wanted. And of all parts a share of the samples at a time (`rules/convolution.py`).

Other kernels, or for other sizes: exact only where a probe on the device says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.convolution import form, large, parameter_gradients
from lowtide.rules.in_place import ELEMENTWISE, writable

__all__ = ["MADE_PARTS", "SHARED", "ChannelParts", "ChannelsLast", "parts_of"]

MADE_PARTS = "lowtide.made_parts"
"""The target of ops that make the parts of the input themselves."""
SHARED = ".shared"
"""At the end of the names of ops that take a share of the samples at a time."""
_MOST_PARTS = 4
_PART = 16
"""Channels that kernels treat together, so that a part has a multiple of them."""
_SMALLER = 0.8
"""What the parts are made from, and one of them, by the whole."""
_CONVOLUTION = "aten.convolution.default"


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
        for proposal in _from_copies(graph, self.name, _in_parts):
            last = [proposal.ops[-1], *_with_made_parts(graph, proposal.ops[-1])]
            shared = (replace(o, name=f"{o.name}{SHARED}") for o in last)
            yield replace(proposal, ops=(*proposal.ops[:-1], *last, *shared))


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
    for op in large(graph):
        gradient, given, weight = (graph.value[v] for v in op.inputs[:3])
        made = parameter_gradients(graph, op)
        if not made or gradient.is_view or given.is_view:
            continue
        if suits(gradient, given, weight):
            copies = [_copied(op, value, rule) for value in (given, gradient)]
            read = (copies[1].name, copies[0].name, weight.name)
            ops = [
                copy
                for value, copied in zip((given, gradient), copies, strict=True)
                for copy in _copies(graph, op, value, copied, rule)
            ]
            yield Proposal((*ops, form(op, rule, rule, read, made)), tuple(copies))


def _with_made_parts(graph: Graph, op: Op) -> Iterator[Op]:
    """The same where the input is a convolution's output, and that one's operands are there instead of it."""
    copied_gradient, _, weight = op.inputs
    given = graph.value[graph.op[op.of].inputs[1]]
    maker = _convolution_below(graph, given)
    if maker is None:
        return
    source, sink = graph.value[maker.inputs[0]], graph.value[maker.inputs[1]]
    plain = sink.shape[:2] == (given.shape[1], source.shape[1])
    there = {o.value for o in graph.outside if o.owned}
    read = graph.bytes_of(n for n in maker.inputs if graph.storage(n) not in there)
    if plain and read + given.bytes / parts_of(given.shape[1]) <= _SMALLER * given.bytes:
        inputs = tuple(dict.fromkeys((copied_gradient, weight, *maker.inputs)))
        yield replace(op, name=f"{op.of}.made_parts", target=MADE_PARTS, inputs=inputs)


def _convolution_below(graph: Graph, value: Value) -> Op | None:
    """The one whose output this is, as it is or with activations applied to it."""
    while graph.makers[value.name]:
        maker = graph.makers[value.name][0]
        if not maker.rerun or graph.value[maker.outputs[0]].spec != value.spec:
            return None
        if maker.target == _CONVOLUTION:
            return maker
        if maker.target not in ELEMENTWISE or len(maker.inputs) != 1:
            return None
        value = graph.value[maker.inputs[0]]
    return None


def _copies(graph: Graph, op: Op, value: Value, copied: Value, rule: str) -> Iterator[Op]:
    over = writable(graph, (value.name,), value.name)
    there = form(op, rule, f"{value.name}.{rule}", (value.name,), (copied.name,))
    yield replace(there, target="lowtide.copy", over=over)
    if over:
        maker = graph.makers[value.name][0]
        back = form(op, rule, f"{value.name}.{rule}.back", (copied.name,), (value.name,))
        yield replace(back, target="lowtide.copy_back", of=maker.name, over=(copied.name,))


def _copied(op: Op, value: Value, rule: str) -> Value:
    name = f"{op.name}.{value.name}.{rule}"
    return replace(value, name=name, storage=name, kind=Kind.TEMPORARY, layer=op.layer)
