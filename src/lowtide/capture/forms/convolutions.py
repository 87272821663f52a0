"""Convolution gradients one at a time, by a transposed convolution, and in channels-last layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, gradient_mask
from lowtide.ir.graph import Op
from lowtide.kernels import layout
from lowtide.kernels.convolution import (
    gradients_and_made_parts,
    input_gradient,
    output_padding,
    parameter_gradients,
    parameter_gradients_by_made_parts,
    parameter_gradients_by_parts,
    parameter_gradients_by_shares,
)
from lowtide.kernels.loops import team
from lowtide.rules.layouts import MADE_PARTS, SHARED, parts_of

__all__ = ["channels_last", "compared_parts", "parts", "shares", "split", "transposed_form"]

_MOST_SHARES = 8


def split(captured: Captured, op: Op, plain: Form) -> Form:
    """A backward whose last argument says which gradients to make: only those of this op's outputs."""
    return Form(plain.target, (*plain.args[:-1], gradient_mask(captured, op, plain)), plain.kwargs)


def shares(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, *_ = plain.args
    count = _shares(gradient)
    wanted = gradient_mask(captured, op, plain)
    return Form(parameter_gradients_by_shares, plain.args[:-1], {"wanted": wanted, "shares": count}) if count else None  # fmt: skip


def _shares(gradient: fx.Node) -> int:
    """One for each thread; 0 where samples cannot be shared so, or there is but one thread."""
    tensor, threads = gradient.meta["val"], torch.get_num_threads()
    samples = tensor.shape[0]
    equal = type(samples) is int and samples % threads == 0
    usable = tensor.device.type == "cpu" and 1 < threads <= _MOST_SHARES and team() is not None
    return threads if equal and usable else 0


def transposed_form(captured: Captured, op: Op, plain: Form) -> Form | None:
    """The gradient of the input alone: the other kind of convolution, of the gradient that arrives, with the same weights."""
    gradient, given, weight, _, stride, padding, dilation, transposed, none, groups, _ = plain.args
    if transposed:
        geometry = (stride, padding, dilation, [0] * len(none), groups, True)
        return Form(input_gradient, (gradient, weight, *geometry), {})
    shapes = [tuple(n.meta["val"].shape[2:]) for n in (given, gradient, weight)]
    numbers = [*stride, *padding, *dilation, *(n for shape in shapes for n in shape)]
    if not all(type(n) is int for n in numbers):
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
    """As `rules/layouts.py` names it; None where the tensor has no such layout, or lies in it already."""
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
    if op.target == MADE_PARTS:
        return _by_made_parts(captured, op, plain)
    copies = (Added(f"{op.of}.{n.name}.{op.rule}", _part(n)) for n in (gradient, given))
    count = _shares(gradient) if op.name.endswith(SHARED) else 1
    options = {"wanted": gradient_mask(captured, op, plain), "shares": count}
    return Form(parameter_gradients_by_parts, (*copies, weight, sizes, *rest), options) if count else None  # fmt: skip


class _Made(NamedTuple):
    """How a convolution's output, with activations applied to it, is made."""

    operands: tuple[Any, ...]
    """The convolution's: source, filters, bias."""
    convolved: tuple[Any, ...]
    """Its other arguments."""
    then: tuple[tuple[Any, tuple[Any, ...]], ...]
    """The activations, each with what it is called with besides a tensor."""


def _made(node: fx.Node) -> _Made | None:
    then: list[tuple[Any, tuple[Any, ...]]] = []
    while node.target is not torch.ops.aten.convolution.default:
        if (
            len(node.all_input_nodes) != 1
            or node.kwargs
            or node.args[0] is not node.all_input_nodes[0]
        ):
            return None
        then.insert(0, (node.target, tuple(node.args[1:])))
        node = node.args[0]
    transposed, _, groups = node.args[6:]
    plain = not transposed and groups == 1
    return _Made(node.args[:3], node.args[3:], tuple(then)) if plain else None


def _by_made_parts(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, given, weight, sizes, *rest, _ = plain.args
    made = _made(given)
    if made is None:
        return None
    copy = Added(f"{op.of}.{gradient.name}.{op.rule}", _part(gradient))
    count = _shares(gradient) if op.name.endswith(SHARED) else 1
    if not count:
        return None
    return Form(
        parameter_gradients_by_made_parts,
        (copy, parts_of(given.meta["val"].shape[1]), *made.operands, weight, sizes, *rest),
        {
            "wanted": gradient_mask(captured, op, plain), "convolved": made.convolved, "then": made.then,
            "blocked": _may_be_blocked(made), "shares": count,
        },
    )  # fmt: skip


def _may_be_blocked(made: _Made) -> bool:
    """Tensors in oneDNN's own layout are of one type here, and few functions take them."""
    source = made.operands[0].meta["val"]
    known = source.device.type == "cpu" and source.dtype is torch.float32
    calls = {call for call, _ in made.then}
    return known and torch.backends.mkldnn.is_available() and calls <= {torch.ops.aten.relu.default}


def compared_parts(captured: Captured, op: Op, plain: Form) -> tuple[Form, Form] | None:
    """Captured calls and those of an op that makes parts of its input itself; both also return that input."""
    cut = _by_made_parts(captured, op, plain)
    if cut is None:
        return None
    whole = Added("", Form(layout.in_parts, (plain.args[0], 1), {}))
    plainly = {**cut.kwargs, "blocked": False, "shares": 1}
    once = Form(gradients_and_made_parts, (whole, 1, *cut.args[2:]), plainly)
    return once, Form(gradients_and_made_parts, cut.args, cut.kwargs)


def _plain(node: fx.Node) -> bool:
    tensor = node.meta["val"]
    return tensor.dim() == 4 and type(tensor.shape[1]) is int and tensor.is_contiguous()


def _part(node: fx.Node) -> Form:
    return Form(layout.in_parts, (node, parts_of(node.meta["val"].shape[1])), {})
