"""Gradients from a bit per element."""

from __future__ import annotations

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, dense
from lowtide.ir.graph import Op
from lowtide.kernels.dropout import compiled_scale

__all__ = ["one_bit"]

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
