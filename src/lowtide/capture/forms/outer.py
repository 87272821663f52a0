"""Sums with the product of a column and a row, without and with making it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form
from lowtide.ir.graph import Op
from lowtide.kernels.loops import COMPILED
from lowtide.kernels.outer import plus_outer, plus_product

__all__ = ["with_product", "without_product"]

_TYPES = (torch.float32, torch.float64)


def without_product(captured: Captured, op: Op, plain: Form) -> Form | None:
    total, product = _terms(captured, op, plain)
    tensors = [n.meta["val"] for n in (total, product, *product.args)]
    alike = {(t.dtype, t.device.type) for t in tensors}
    known = all(type(n) is int for t in tensors for n in t.shape)
    sums = len(plain.args) == 2 and not plain.kwargs and COMPILED
    if not sums or not known or len(alike) > 1 or tensors[0].shape != tensors[1].shape:
        return None
    if tensors[0].dtype not in _TYPES or tensors[0].device.type != "cpu" or not tensors[0].is_contiguous():  # fmt: skip
        return None
    return Form(plus_outer, (total, *product.args), {})


def with_product(captured: Captured, op: Op, plain: Form) -> Form:
    """As it was captured, from what the other form reads."""
    total, product = _terms(captured, op, plain)
    return Form(plus_product, (total, product.target, *product.args), {})


def _terms(captured: Captured, op: Op, plain: Form) -> tuple[fx.Node, Any]:
    total = captured.tensors[op.inputs[0]]
    left, right = plain.args[:2]
    return total, right if left is total else left
