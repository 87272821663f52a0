"""LSTM layers by the kernel of ours that keeps gates or states."""

from __future__ import annotations

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form
from lowtide.ir.graph import Op
from lowtide.kernels import rnn_fused

__all__ = ["fused"]

_KERNEL, _KEEP, _WORKSPACE = 9, 10, 3
"""Of `lowtide::lstm_layer`: places of two arguments, and of a result."""
_FINALS, _KEPT, _FROM_KERNEL = slice(12, 14), 14, 16
"""Of its backward: places of the final states, of the workspace and of the kernel's name."""


def fused(captured: Captured, op: Op, plain: Form) -> Form | None:
    forward = op.target == "lowtide.lstm_layer.default"
    (kept,) = {*op.inputs, *op.outputs} - captured.graph.value.keys()
    layer = captured.nodes[kept.rpartition(".")[0]]
    x, w_hr = layer.args[0], layer.args[7]
    sizes = x.meta["val"].shape
    if not rnn_fused.supports(x.meta["val"], w_hr) or not all(type(n) is int for n in sizes):
        return None
    args = list(layer.args)
    args[_KERNEL], args[_KEEP] = "fused", kept.endswith(".gates")
    run = Form(layer.target, tuple(args), dict(layer.kwargs), {kept: _WORKSPACE})
    if forward:
        return run
    back = list(plain.args)
    back[_FINALS], back[_KEPT], back[_FROM_KERNEL] = (None, None), Added(kept, run), "fused"
    return Form(plain.target, tuple(back), plain.kwargs)
