"""Smaller copies of tensors, tensors without their zeros or elsewhere, and the way back."""

from __future__ import annotations

from collections.abc import Callable

import torch

import lowtide.kernels.bytes
import lowtide.kernels.files
import lowtide.kernels.sparse  # noqa: F401 (all register ops)
from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form, dense
from lowtide.ir.graph import Op
from lowtide.rules.sparse import parts_of

__all__ = ["half", "move", "quarter_bytes", "sparse"]

_ops = torch.ops.lowtide
_cast = torch.ops.aten._to_copy.default


def half(captured: Captured, op: Op, plain: Form) -> Form | None:
    def back(small: Added, tensor: torch.Tensor) -> Form:
        return Form(_cast, (small,), {"dtype": tensor.dtype})

    return _either_way(captured, op, Form(_cast, (), {"dtype": torch.bfloat16}), back)


def quarter_bytes(captured: Captured, op: Op, plain: Form) -> Form | None:
    def back(small: Added, tensor: torch.Tensor) -> Form:
        return Form(_ops.from_bytes.default, (small, *_layout(tensor)), {})

    return _either_way(captured, op, Form(_ops.as_bytes.default, (), {}), back)


def move(captured: Captured, op: Op, plain: Form) -> Form | None:
    def back(ticket: Added, tensor: torch.Tensor) -> Form:
        where = (*_layout(tensor), tensor.dtype, tensor.device)
        return Form(_ops.moved_back.default, (ticket, *where), {})

    return _either_way(captured, op, Form(_ops.moved.default, (), {}), back)


def sparse(captured: Captured, op: Op, plain: Form) -> Form | None:
    def back(small: Added, tensor: torch.Tensor) -> Form:
        return Form(_ops.with_zeros.default, (small, *_layout(tensor), tensor.dtype), {})

    packed = op.outputs[0] if op.target == "lowtide.encode" else op.inputs[0]
    there = Form(_ops.without_zeros.default, (parts_of(packed),), {})
    return _either_way(captured, op, there, back)


def _either_way(
    captured: Captured, op: Op, there: Form, back: Callable[[Added, torch.Tensor], Form]
) -> Form | None:
    """The call that encodes a tensor, which is then its first argument, or the one that makes it again; the tensor must be dense."""
    encodes = op.target == "lowtide.encode"
    node = captured.tensors[op.inputs[0] if encodes else op.outputs[0]]
    encode = Form(there.target, (node, *there.args), there.kwargs)
    if not dense(node.meta["val"]):
        return None
    return encode if encodes else back(Added(op.inputs[0], encode), node.meta["val"])


def _layout(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    return [*tensor.shape], [*tensor.stride()]
