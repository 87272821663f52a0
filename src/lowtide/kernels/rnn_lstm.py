"""One LSTM layer in one direction as one op, `lowtide::lstm_layer`, whose workspace is an explicit output.

The planner can then keep the workspace, or keep the layer's inputs and run the op again. The implementation is named in
the graph (`kernel`), so that a plan cannot meet another one at run time than the one it was measured with:

    "fused"   a compiled loop for float32 on CPU; workspace: some cell states, and the gates unless backward is to compute them again.
              By default; `rnn_fused.Way` has names for the same loop with other sizes
    "onednn"  what eager trains with on CPU; workspace: opaque bytes, about 15 times y
    "loop"    ATen ops, any dtype and device, projections; workspace: the gates (T, B, 4H), 4 times y

With `keep=False` the workspace is empty (of "fused": has no gates); y, h_n and c_n are those of a forward pass without gradients.
`lstm_layer_backward` takes None for the gradient of an output that nobody used, and `needs` says which of the eight
gradients to return; the others are empty tensors, which autograd never sees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowtide.kernels import rnn_fused, rnn_loop, rnn_onednn

__all__ = ["choose_kernel", "lstm_layer", "lstm_layer_backward", "run_layer"]


def choose_kernel(x: Tensor, w_hr: Tensor | None) -> str:
    """The implementation eager would train this layer with, or the nearest to it."""
    return "onednn" if w_hr is None and rnn_onednn.supports(x) else "loop"


def _forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
    kernel: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (T, B, I) -> y (T, B, P), h_n (B, P), c_n (B, H), workspace."""
    if kernel == "onednn":
        return rnn_onednn.forward(x, h0, c0, w_ih, w_hh, b_ih, b_hh, reverse, keep)
    if way := rnn_fused.Way.named(kernel):
        with torch.no_grad():
            return rnn_fused.forward(x, h0, c0, w_ih, w_hh, b_ih, b_hh, reverse, keep, way)
    with torch.no_grad():
        y, h_n, c_n, gates = rnn_loop.lstm_forward(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, reverse)
    return y, h_n, c_n, gates if keep else gates.new_empty(0)


lstm_layer = torch.library.custom_op(
    "lowtide::lstm_layer",
    _forward,
    mutates_args=(),
    schema="(Tensor x, Tensor h0, Tensor c0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh,"
    " Tensor? w_hr, bool reverse, str kernel, bool keep) -> (Tensor, Tensor, Tensor, Tensor)",
)


@lstm_layer.register_fake
def _(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
    kernel: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch = x.shape[:2]
    if kernel == "onednn":
        size = rnn_onednn.workspace_bytes(x, c0.shape[1]) if keep else 0
        workspace = x.new_empty(size, dtype=torch.uint8)
    elif way := rnn_fused.Way.named(kernel):
        workspace = x.new_empty(rnn_fused.workspace_elements(x, c0.shape[1], keep, way))
    else:
        workspace = w_ih.new_empty((steps, batch, w_ih.shape[0]) if keep else 0)
    cells = torch.promote_types(w_ih.dtype, c0.dtype)
    states = cells if w_hr is None else w_hr.dtype
    y = x.new_empty(steps, batch, h0.shape[1], dtype=states)
    return y, h0.new_empty(h0.shape, dtype=states), c0.new_empty(c0.shape, dtype=cells), workspace


def _gradients(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    y: Tensor,
    h_n: Tensor | None,
    c_n: Tensor | None,
    workspace: Tensor,
    reverse: bool,
    kernel: str,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    """Gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr."""
    grads = (grad_y, grad_h, grad_c)
    results: list[Tensor | None]
    if kernel == "onednn":
        assert h_n is not None, "oneDNN's backward is given all three outputs"
        assert c_n is not None
        computed = rnn_onednn.backward(
            grads, x, h0, c0, w_ih, w_hh, b_ih, b_hh, (y, h_n, c_n), workspace, reverse
        )
        results = [g if need else None for g, need in zip((*computed, None), needs, strict=True)]
    elif way := rnn_fused.Way.named(kernel):
        results = rnn_fused.backward(
            grads, x, h0, c0, w_ih, w_hh, b_ih, b_hh, y, workspace, reverse, needs, way
        )
    else:
        results = rnn_loop.lstm_backward(
            grads, x, h0, c0, w_ih, w_hh, w_hr, y, workspace, reverse, needs
        )
    return tuple(x.new_empty(0) if g is None else g for g in results)


lstm_layer_backward = torch.library.custom_op(
    "lowtide::lstm_layer_backward",
    _gradients,
    mutates_args=(),
    schema="(Tensor? grad_y, Tensor? grad_h, Tensor? grad_c, Tensor x, Tensor h0, Tensor c0, Tensor w_ih, Tensor w_hh,"
    " Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, Tensor y, Tensor? h_n, Tensor? c_n, Tensor workspace, bool reverse,"
    " str kernel, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@lstm_layer_backward.register_fake
def _(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    y: Tensor,
    h_n: Tensor | None,
    c_n: Tensor | None,
    workspace: Tensor,
    reverse: bool,
    kernel: str,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    inputs = (x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
    return tuple(
        x.new_empty(0) if v is None or not need else v.new_empty(v.shape)
        for v, need in zip(inputs, needs, strict=True)
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, kernel, _ = inputs
    y, h_n, c_n, workspace = output
    finals = (h_n, c_n) if kernel == "onednn" else (None, None)
    ctx.save_for_backward(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, y, *finals, workspace)
    ctx.mark_non_differentiable(workspace)
    ctx.set_materialize_grads(False)
    ctx.reverse, ctx.kernel = reverse, kernel


def _backward(
    ctx: Any, grad_y: Tensor | None, grad_h: Tensor | None, grad_c: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:8])
    run = _gradients if getattr(ctx, "eager", False) else lstm_layer_backward
    grads = run(grad_y, grad_h, grad_c, *ctx.saved_tensors, ctx.reverse, ctx.kernel, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), None, None, None)


lstm_layer.register_autograd(_backward, setup_context=_remember)


class _Eager(torch.autograd.Function):
    """The same without the dispatcher, whose way to an op of Python takes half a millisecond for forward and backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        made = _forward(*inputs)
        _remember(ctx, inputs, made)
        ctx.eager = True
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return _backward(ctx, *grads)


def run_layer(x: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """`lstm_layer`, which who looks on sees as an op: a compiler, a mode, a transformation, a subclass of tensor."""
    tensors = [x, *(t for t in others if isinstance(t, Tensor))]
    watched = (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors)
    )
    made: tuple[Tensor, ...] = (lstm_layer if watched else _Eager.apply)(x, *others)
    return made
