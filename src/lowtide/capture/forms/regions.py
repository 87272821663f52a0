"""Regions of ops, run a slice of their rows at a time."""

from __future__ import annotations

import torch

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form, gradient_mask
from lowtide.capture.forms.convolutions import transposed_form
from lowtide.capture.slicing import sliced
from lowtide.ir.graph import Op
from lowtide.kernels.convolution import parameter_gradients
from lowtide.kernels.products import product_over_rows

__all__ = ["slices", "summed"]


def slices(captured: Captured, op: Op, plain: Form, *, bare: bool = False) -> Form | None:
    last = None
    if plain.target is torch.ops.aten.convolution_backward.default:
        last = transposed_form(captured, op, plain)
        if last is None:
            return None
    count = int(op.target.rpartition(".")[2])
    call = sliced(captured, op, count, last and last[:3], bare=bare)
    return call and Form(*call)


def summed(captured: Captured, op: Op, plain: Form) -> Form | None:
    if plain.target is torch.ops.aten.convolution_backward.default:
        mask = gradient_mask(captured, op, plain)
        last = Form(parameter_gradients, (*plain.args[:-1], mask), {})
    else:
        turned, other = plain.args
        last = Form(product_over_rows, (turned.args[0], other), {})
    call = sliced(captured, op, int(op.target.rpartition(".")[2]), last[:3], summed=True)
    return call and Form(*call)
