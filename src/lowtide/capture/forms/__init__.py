"""With which call does an op run? The captured call itself, or the form of it that a rule proposed.

A rule names an op's inputs and outputs and nothing else; what to call for it, in terms of the captured call, is said here, once,
for whoever prices it and whoever runs it. A form that this very call does not have (a transposed convolution's, one with
symbolic sizes) is None: then the op is not offered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms import (
    activations,
    convolutions,
    encodings,
    inversions,
    masks,
    outer,
    placing,
    pooling,
    products,
    recurrent,
    regions,
    statistics,
)
from lowtide.capture.forms.base import Added, Form, FormOf, dense
from lowtide.capture.slicing import sliced
from lowtide.errors import GraphError, OptionError
from lowtide.ir.graph import Graph, Op
from lowtide.kernels import layout
from lowtide.kernels.masks import masked_over, scaled_over
from lowtide.rules.layouts import MADE_PARTS
from lowtide.rules.statistics import NORMALISED

__all__ = [
    "Added",
    "Form",
    "FormOf",
    "compared",
    "form_of",
    "teach",
    "without_formless",
    "written_over",
]

_FORMS: dict[str, FormOf] = {
    "split": convolutions.split,
    "shares": convolutions.shares,
    "transposed": convolutions.transposed_form,
    "channels_last": convolutions.channels_last,
    "parts": convolutions.parts,
    "mask": masks.one_bit,
    "from_output": activations.from_output,
    "statistics": statistics.from_statistics,
    "channels": activations.by_channels,
    "pool": pooling.pool,
    "slices": regions.slices,
    "summed": regions.summed,
    "outer": outer.without_product,
    "placed": placing.in_place_of_zeros,
    "turned": products.the_other_way_round,
    "recurrent": recurrent.fused,
    "inverted": inversions.inverted,
    "half": encodings.half,
    "int8": encodings.quarter_bytes,
    "move": encodings.move,
    "sparse": encodings.sparse,
}
"""By the name of the rule; `teach` adds to them."""

_OVER: dict[Any, Any] = {
    torch.ops.lowtide.masked.default: masked_over,
    torch.ops.lowtide.scaled.default: scaled_over,
    layout.channels_last: layout.channels_last_over,
    layout.channels_first: layout.channels_first_over,
    layout.in_parts: layout.in_parts_over,
    layout.whole: layout.whole_over,
}
"""Ops of ours that write over what they read."""


def teach(rule: str, form: FormOf) -> None:
    """How the ops of a rule from outside run."""
    if _FORMS.setdefault(rule, form) is not form:
        raise OptionError(f"there is a rule called {rule!r} already: give yours another name")


def form_of(captured: Captured, op: Op) -> Form | None:
    node = captured.nodes[op.of or op.name]
    plain = Form(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    if op.rule in ("", "replay"):
        return plain
    if op.rule not in _FORMS:
        raise GraphError(f"nothing is known of how to run {op.name}, an op of rule {op.rule!r}")
    return _FORMS[op.rule](captured, op, plain)


def without_formless(captured: Captured, graph: Graph) -> Graph:
    """The graph without the proposals for calls that have no such form or weights that do not bear it, and no leave to write over what lies
    otherwise."""
    gone = {
        o.name
        for o in graph.ops
        if o.rule and (form_of(captured, o) is None or inversions.loses_too_much(captured, o))
    }
    left = graph.without(gone) if gone else graph
    return left.with_ops(_writable(captured, o) if o.over else o for o in left.ops)


def _writable(captured: Captured, op: Op) -> Op:
    if op.target in ("lowtide.copy", "lowtide.copy_back"):
        original = captured.tensors[op.over[0] if op.target == "lowtide.copy" else op.outputs[0]]
        return op if original.meta["val"].is_contiguous() else replace(op, over=())
    made = captured.tensors[op.outputs[0]].meta["val"]
    given = {name: captured.tensors[name].meta["val"] for name in op.over}
    same = [
        name
        for name, tensor in given.items()
        if tensor.stride() == made.stride() and tensor.dtype == made.dtype and dense(made)
    ]
    return replace(op, over=tuple(same))


def written_over(form: Form, node: fx.Node | None) -> Form:
    """The same call with its result in the place of one of its tensors; none where that is a value which a rule added."""
    if form.target in _OVER:
        return Form(_OVER[form.target], form.args, form.kwargs)
    if not isinstance(form.target, torch._ops.OpOverload):
        return Form(form.target, form.args, {**form.kwargs, "over": node})
    packet = form.target.overloadpacket
    name = "grad_input" if "grad_input" in packet.overloads() else "out"
    if torch.Tag.generated in getattr(packet, name).tags:  # a copy first, so nothing would be saved
        return Form(getattr(torch.ops.aten, f"{packet.__name__}_").default, form.args, form.kwargs)
    return Form(getattr(packet, name), form.args, {**form.kwargs, name: node})


def compared(captured: Captured, op: Op) -> tuple[Form | None, Form | None, list[int | None]]:
    """A captured call, a rule's op that is to give the same bits, and the elements to compare; none for all. Of regions all that is
    inside is compared, too: a bit that differs there may not show in the end for one batch, and show for another."""
    plain = form_of(captured, captured.graph.op[op.of])
    wanted = [captured.elements.get(name) for name in op.outputs]
    if op.target == MADE_PARTS and plain is not None:
        pair = convolutions.compared_parts(captured, op, plain)
        return (*pair, []) if pair is not None else (None, None, [])
    if op.target == NORMALISED:
        return statistics.pass_by_pass(captured, op), form_of(captured, op), []
    if op.rule == "outer" and plain is not None:
        return outer.with_product(captured, op, plain), form_of(captured, op), []
    single = captured.nodes[op.of].target is torch.ops.aten.convolution_backward.default
    if op.rule != "slices" or single or plain is None:
        return plain, form_of(captured, op), wanted
    whole, cut = sliced(captured, op, 1, bare=True), regions.slices(captured, op, plain, bare=True)
    if whole is None or cut is None:
        return None, None, []
    return Form(*whole), cut, []
