"""Convolution gradients one at a time, by a transposed convolution, and in channels-last layout."""

from __future__ import annotations

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, gradient_mask
from lowtide.ir.graph import Op
from lowtide.kernels import layout
from lowtide.kernels.convolution import (
    input_gradient,
    output_padding,
    parameter_gradients,
    parameter_gradients_by_parts,
)
from lowtide.rules.convolution import parts_of

__all__ = ["channels_last", "parts", "split", "transposed_form"]


def split(captured: Captured, op: Op, plain: Form) -> Form:
    """A backward whose last argument says which gradients to make: only those of this op's outputs."""
    return Form(plain.target, (*plain.args[:-1], gradient_mask(captured, op, plain)), plain.kwargs)


def transposed_form(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, given, weight, _, stride, padding, dilation, transposed, _, groups, _ = plain.args
    shapes = [tuple(n.meta["val"].shape[2:]) for n in (given, gradient, weight)]
    numbers = [*stride, *padding, *dilation, *(n for shape in shapes for n in shape)]
    if transposed or not all(type(n) is int for n in numbers):
        return None
    missing = output_padding(*shapes, stride, padding, dilation)
    return Form(input_gradient, (gradient, weight, stride, padding, dilation, missing, groups), {})


def channels_last(captured: Captured, op: Op, plain: Form) -> Form | None:
    if op.target == "lowtide.copy_back":
        original = captured.tensors[op.outputs[0]]
        copy = Added(op.inputs[0], Form(layout.channels_last, (original,), {}))
        plainly = original.meta["val"].is_contiguous()
        return Form(layout.channels_first, (copy,), {}) if plainly else None
    gradient, given, weight, *rest = plain.args
    copies = {node.name: _copy(op, node) for node in (gradient, given)}
    if any(copy is None for copy in copies.values()):
        return None
    if op.target == "lowtide.copy":
        added = copies[op.inputs[0]]
        return added and added.form
    mask = gradient_mask(captured, op, plain)
    return Form(parameter_gradients, (*copies.values(), weight, *rest[:-1], mask), {})


def _copy(op: Op, node: fx.Node) -> Added | None:
    """As `rules/convolution.py` names it; None where the tensor has no such layout, or lies in it already."""
    tensor = node.meta["val"]
    if tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    turned = Form(layout.channels_last, (node,), {})
    plain = Form(torch.ops.aten.clone.default, (node,), {"memory_format": torch.channels_last})
    return Added(f"{op.of}.{node.name}.{op.rule}", turned if tensor.is_contiguous() else plain)


def parts(captured: Captured, op: Op, plain: Form) -> Form | None:
    if op.target == "lowtide.copy_back":
        original = captured.tensors[op.outputs[0]]
        return Form(layout.whole, (Added(op.inputs[0], _part(original)),), {}) if _plain(original) else None  # fmt: skip
    gradient, given, weight, sizes, *rest, _ = plain.args
    transposed = rest[3]
    if transposed or not _plain(gradient) or not _plain(given):
        return None
    if op.target == "lowtide.copy":
        return _part(captured.tensors[op.inputs[0]])
    copies = (Added(f"{op.of}.{n.name}.{op.rule}", _part(n)) for n in (gradient, given))
    wanted = gradient_mask(captured, op, plain)
    return Form(parameter_gradients_by_parts, (*copies, weight, sizes, *rest), {"wanted": wanted})


def _plain(node: fx.Node) -> bool:
    tensor = node.meta["val"]
    return tensor.dim() == 4 and type(tensor.shape[1]) is int and tensor.is_contiguous()


def _part(node: fx.Node) -> Form:
    return Form(layout.in_parts, (node, parts_of(node.meta["val"].shape[1])), {})
