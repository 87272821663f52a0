"""Smaller copies of tensors, tensors elsewhere, and the way back."""

from __future__ import annotations

import torch

import lowtide.kernels.bytes
import lowtide.kernels.files  # noqa: F401 (both register ops)
from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, dense
from lowtide.ir.graph import Op

__all__ = ["half", "move", "quarter_bytes"]

_ops = torch.ops.lowtide
_cast = torch.ops.aten._to_copy.default


def half(captured: Captured, op: Op, plain: Form) -> Form | None:
    given = op.inputs[0] if op.target == "lowtide.encode" else op.outputs[0]
    node = captured.tensors[given]
    smaller = Form(_cast, (node,), {"dtype": torch.bfloat16})
    if op.target == "lowtide.encode":
        return smaller if dense(node.meta["val"]) else None
    return Form(_cast, (Added(op.inputs[0], smaller),), {"dtype": torch.float32})


def quarter_bytes(captured: Captured, op: Op, plain: Form) -> Form | None:
    given = op.inputs[0] if op.target == "lowtide.encode" else op.outputs[0]
    node = captured.tensors[given]
    tensor = node.meta["val"]
    smaller = Form(_ops.as_bytes.default, (node,), {})
    if op.target == "lowtide.encode":
        return smaller if dense(tensor) else None
    shape = [*tensor.shape], [*tensor.stride()]
    return Form(_ops.from_bytes.default, (Added(op.inputs[0], smaller), *shape), {})


def move(captured: Captured, op: Op, plain: Form) -> Form | None:
    given = op.inputs[0] if op.target == "lowtide.encode" else op.outputs[0]
    node = captured.tensors[given]
    tensor = node.meta["val"]
    away = Form(_ops.moved.default, (node,), {})
    if op.target == "lowtide.encode":
        return away if dense(tensor) else None
    back = ([*tensor.shape], [*tensor.stride()], tensor.dtype, tensor.device)
    return Form(_ops.moved_back.default, (Added(op.inputs[0], away), *back), {})
