"""Gradients from a bit per element, and of pools from a few bits per window."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, dense
from lowtide.ir.graph import Op
from lowtide.kernels.dropout import compiled_scale
from lowtide.kernels.loops import COMPILED
from lowtide.kernels.pooling import gradient_without_input

__all__ = ["one_bit", "pool"]

_ops = torch.ops.lowtide


def one_bit(captured: Captured, op: Op, plain: Form) -> Form | None:
    """A gradient from bits; both tensors must lie in memory in one order."""
    name = op.name.rpartition(".")[0]
    backward = captured.nodes[name]
    gradient, decides, *numbers = backward.args
    if op.target == "lowtide.pack":
        decides = captured.tensors[op.inputs[0]]
    given, made = decides.meta["val"], gradient.meta["val"]
    if given.stride() != made.stride() or not dense(given):
        return None
    if op.target == "lowtide.dropped":
        return _dropped(
            decides, Added(op.inputs[1], Form(_ops.pack_true.default, (decides,), {})), plain
        )
    match str(backward.target):
        case "aten.threshold_backward.default":
            bits = Form(_ops.pack_above.default, (decides, float(numbers[0])), {})
            rest: tuple[float, ...] | None = None
        case "aten.hardtanh_backward.default":
            bits = Form(_ops.pack_inside.default, (decides, *map(float, numbers)), {})
            rest = None
        case "aten.leaky_relu_backward.default":
            bits = Form(_ops.pack_above.default, (decides, 0.0), {})
            rest = (1.0, float(numbers[0]))
        case _:
            bits = Form(_ops.pack_true.default, (decides,), {})
            rest = (float(numbers[0]), 0.0)
    if op.target == "lowtide.pack":
        return bits
    read = (gradient, Added(f"{name}.bits", bits))
    return (
        Form(_ops.masked.default, read, {})
        if rest is None
        else Form(_ops.scaled.default, (*read, *rest), {})
    )


def _dropped(mask: fx.Node, bits: Added, dropout: Form) -> Form | None:
    """What a dropout made, as ATen computes it on a CPU: times the mask, then times the scale."""
    given, p, scale = dropout.args
    tensor = given.meta["val"]
    if tensor.device.type != "cpu" or tensor.stride() != mask.meta["val"].stride():
        return None
    if dropout.target is torch.ops.aten.native_dropout.default:
        scale = compiled_scale(p, tensor.dtype) if p < 1 else 0.0
    return Form(_ops.scaled.default, (given, bits, scale, 0.0), {})


def pool(captured: Captured, op: Op, plain: Form) -> Form | None:
    name = op.name.rpartition(".")[0]
    gradient, given, kernel, stride, padding, dilation, ceil, indices = captured.nodes[name].args
    sizes = list(given.meta["val"].shape)
    plain_layout = all(n.meta["val"].is_contiguous() for n in (gradient, given, indices))
    whole = all(type(n) is int for n in sizes)
    if not plain_layout or not whole:
        return None
    if op.name.endswith(".without_input"):
        geometry = (kernel, stride, padding, dilation, ceil)
        return Form(gradient_without_input, (gradient, indices, sizes, *geometry), {})
    kernel, stride, padding, dilation = (_pair(n) for n in (kernel, stride or kernel, padding, dilation))  # fmt: skip
    tensor = given.meta["val"]
    small = kernel[0] * kernel[1] <= 16 and dilation == [1, 1] and kernel[1] <= sizes[-1]
    if not small or not COMPILED or tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):  # fmt: skip
        return None
    packed = Form(_ops.pack_indices.default, (indices, sizes[-1], kernel, stride, padding), {})
    if op.target == "lowtide.pack":
        return packed
    read = (gradient, Added(f"{name}.packed", packed))
    return Form(_ops.pool_gradient.default, (*read, sizes, kernel, stride, padding), {})


def _pair(numbers: Any) -> list[int]:
    return [*numbers] * 2 if len(numbers) == 1 else [*numbers]
