"""What an op read, made again from what it made: batch norm and leaky ReLU the other way round.

Then only the output of a convolution, batch norm and leaky ReLU waits for backward, and the next convolution's backward needs that one anyway; with the
input kept instead, both are there at that moment. Other bits come out than were there, so it is for those who allow rounding.

- **Leaky ReLU**: its output has the sign of its input, so it is undone by a leaky ReLU with the slope turned round.
- **Batch norm's backward** asks for the normalised input, and that is (output - bias) / weight. So it is made from the output as it is, without
  the input.
- **Batch norm's input** itself, where something else reads it.

A batch norm is turned round only where backward has its output for another reason, or what undoes to it. Behind a ReLU, which keeps
half of it, the output would have to be made from the very input that was to be saved.

A batch norm's weight may be zero, as in residual blocks that begin as nothing, or come near it in training. Its output then says nothing of its input,
and how near is not known when a plan is made: the weights change afterwards. An error in the middle of a training would be late, and a wrong
gradient would be worse. So each batch norm has a third op, right behind it in forward, that looks at each channel's weight, bias and deviation and puts
the input of those by that would come back with more than their last six bits wrong (`kernels/inversion.py`). It is kept for backward like any
other value, and what reads the output reads it as well. Mostly it is empty. A plan leaves room for one channel in thirty-two; where the weights that are there
when the plan is made lose more than that, the batch norm is not inverted at all (`capture/forms/inversions.py`), and where they come to it later,
the gradients stay right, memory is taken that was not planned, and a warning says so.

Half precision is left out: what its outputs round away is too much to be called rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.activations import original
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.channels import Channels
from lowtide.rules.in_place import writable
from lowtide.rules.statistics import BATCH_NORMS, notes_statistics

__all__ = ["INVERTED", "SPARED", "Inverted", "room"]

INVERTED, SPARED = "lowtide.inverted", "lowtide.spared"
"""Targets of the ops that make an input, and of those that put by what cannot be made."""
_LEAKY, _LEAKY_BACKWARD = "aten.leaky_relu.default", "aten.leaky_relu_backward.default"
_BACKWARD = "aten.native_batch_norm_backward.default"
_BITS = ("aten.threshold_backward.default", "aten.hardtanh_backward.default")
_PRECISE = ("f32", "f64")
_LOST = 32
"""Room for one channel in so many is planned."""


@dataclass(frozen=True)
class Inverted:
    name: str = "inverted"
    reason: str = "makes what backward reads from a later output instead of keeping it"
    exactness: Exactness = Exactness.ROUNDING
    probed: bool = False
    least: int = Channels.least
    """Bytes from which on a batch norm's gradients are worth a loop over channels."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        leaky = [o for o in graph.captured if o.target == _LEAKY and _whole(graph, o)]
        forwards = {original(graph, o.inputs[0]): o for o in leaky}
        # Of one written in place, backward reads the output.
        forwards |= {o.outputs[0]: o for o in leaky}
        norms = {o.outputs[1]: o for o in graph.captured if _is_norm(graph, o)}
        for op in graph.captured:
            if not op.rerun:
                continue
            if op.target == _LEAKY_BACKWARD:
                forward = forwards.get(original(graph, op.inputs[1]))
                if forward is not None:
                    yield from self.undone(graph, forward, op.segment)
            elif op.target == _BACKWARD:
                norm = next((norms[name] for name in op.inputs if name in norms), None)
                if norm is None or norm.inputs[0] not in op.inputs or norm.segment >= op.segment:
                    continue
                if _there_anyway(graph, norm.outputs[0], op.segment, forwards):
                    yield self.from_output(graph, norm, op)

    def undone(self, graph: Graph, forward: Op, segment: int) -> Iterable[Proposal]:
        op = self.again(graph, forward, forward.outputs[:1], segment)
        if op is not None:
            yield Proposal((op,))

    def from_output(self, graph: Graph, norm: Op, backward: Op) -> Proposal:
        given, output = graph.value[norm.inputs[0]], norm.outputs[0]
        name = f"{norm.name}.spared"
        kept = room(given.shape)
        shape = ", ".join(map(str, (given.shape[0], kept, *given.shape[2:])))
        size = given.bytes // max(given.shape[1], 1) * kept
        value = Value(name, size, name, Kind.ACTIVATION, given.layer, f"{given.spec[:3]}[{shape}]")
        rest = norm.inputs[1:]
        spare = Op(
            f"{norm.name}.spare", SPARED, (given.name, *rest, norm.outputs[2]), (name,), norm.segment,
            layer=norm.layer, source=norm.source, rule=self.name, of=norm.name,
        )  # fmt: skip
        read = (output, *rest, *norm.outputs[1:3], name)
        form = replace(
            backward, name=f"{backward.name}.{self.name}", inputs=_once(backward.inputs[0], *read),
            rule=self.name, of=backward.name,
        )  # fmt: skip
        ops = [spare, form]
        if graph.value[backward.outputs[0]].bytes >= self.least:
            over = writable(graph, backward.inputs[:1], backward.outputs[0])
            ops.append(replace(form, name=f"{form.name}.channels", over=over))
        others = [u for u in graph.users[given.name] if not u.rule and u not in (norm, backward)]
        if any(u.segment >= backward.segment for u in others):
            again = self.again(graph, norm, read, backward.segment)
            ops += [again] if again is not None else []
        return Proposal(tuple(ops), (value,))

    def again(self, graph: Graph, op: Op, read: tuple[str, ...], segment: int) -> Op | None:
        """What the op read, made in a later segment."""
        given = graph.value[original(graph, op.inputs[0])]
        makers = graph.makers[given.name]
        if not makers or given.spec != graph.value[op.outputs[0]].spec:
            return None
        return Op(
            f"{op.name}.{self.name}", INVERTED, _once(*read), (given.name,), segment,
            layer=op.layer, source=op.source, rule=self.name, of=makers[0].name,
            over=writable(graph, read[:1], given.name),
        )  # fmt: skip


def room(shape: tuple[int, ...]) -> int:
    """Channels of a batch norm's input for which a plan has room, should they be lost."""
    return shape[1] // _LOST


def _there_anyway(graph: Graph, output: str, segment: int, leaky: Mapping[str, Op]) -> bool:
    """Does backward read the output, other than for a bit of each number, or that of a leaky ReLU behind it?"""
    readers = {o.name: o for v in graph.values if graph.storage(v.name) == output for o in graph.users[v.name]}  # fmt: skip
    if any(o.segment >= segment and o.target not in _BITS for o in readers.values()):
        return True
    behind = leaky.get(output)
    return behind is not None and any(o.segment >= segment for o in graph.users[behind.outputs[0]])


def _is_norm(graph: Graph, op: Op) -> bool:
    return op.target in BATCH_NORMS and notes_statistics(graph, op) and _whole(graph, op)


def _whole(graph: Graph, op: Op) -> bool:
    output = graph.value[op.outputs[0]]
    return not output.is_view and output.spec.startswith(_PRECISE)


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
