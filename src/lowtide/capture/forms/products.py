"""Matrix products the other way round."""

from __future__ import annotations

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form
from lowtide.ir.graph import Op
from lowtide.kernels.products import turned, turned_plus

__all__ = ["the_other_way_round"]


def the_other_way_round(captured: Captured, op: Op, plain: Form) -> Form | None:
    """Of plain products of matrices of one type; a bias may be a row."""
    tensors = [a.meta["val"] for a in plain.args if isinstance(a, fx.Node)]
    known = all(type(n) is int for t in tensors for n in t.shape)
    alike = len({t.dtype for t in tensors}) == 1
    if plain.kwargs or not known or not alike or len(tensors) != len(plain.args):
        return None
    adds = plain.target is torch.ops.aten.addmm.default
    return Form(turned_plus if adds else turned, plain.args, {})
