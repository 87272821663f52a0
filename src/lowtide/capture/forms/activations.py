"""Gradients from an activation's output, and a batch norm's gradients a few channels at a time."""

from __future__ import annotations

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form
from lowtide.ir.graph import Op
from lowtide.kernels.normalisation import gradients_by_channels

__all__ = ["by_channels", "from_output"]


def from_output(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, _, *numbers = plain.args
    output = captured.tensors[op.inputs[1]]
    same = [float(n) for n in output.args[1:]] == [
        float(n) for n in numbers[: len(output.args) - 1]
    ]
    upward = "leaky" not in str(plain.target) or (len(output.args) > 1 and output.args[1] >= 0)
    return Form(plain.target, (gradient, output, *numbers), {}) if same and upward else None


def by_channels(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, given, *_, mask = plain.args
    tensors = [node.meta["val"] for node in (gradient, given)]
    known = all(type(t.shape[1]) is int for t in tensors)
    if not known or not mask[0] or not all(t.is_contiguous() for t in tensors):
        return None
    return Form(gradients_by_channels, plain.args, {})
