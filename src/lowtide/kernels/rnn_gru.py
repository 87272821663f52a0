"""One GRU layer or one plain RNN layer in one direction as one op: `lowtide::gru_layer`, `lowtide::rnn_layer`.

Both are loops of ATen ops (eager on CPU has no fused kernel for them either). The GRU's workspace is an explicit output,
(T, B, 4H): its three gates and the hidden part of the new gate. The RNN needs none, because the derivatives of tanh and
relu are functions of y.

As in `rnn_lstm`: `keep=False` leaves the workspace empty (backward then computes it again from y, all steps at once), an unused output has None for its gradient, and `needs` says
which of the six gradients (x, h0, w_ih, w_hh, b_ih, b_hh) to return.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lowtide.kernels import rnn_loop

__all__ = ["gru_layer", "gru_layer_backward", "rnn_layer", "rnn_layer_backward"]

_SIX = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"


@torch.library.custom_op(
    "lowtide::gru_layer",
    mutates_args=(),
    schema="(Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, bool reverse, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
)
def gru_layer(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """x (T, B, I) -> y (T, B, H), h_n (B, H), workspace."""
    with torch.no_grad():
        y, h_n, work = rnn_loop.gru_forward(x, h0, w_ih, w_hh, b_ih, b_hh, reverse)
    return y, h_n, work if keep else work.new_empty(0)


@gru_layer.register_fake
def _(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch = x.shape[:2]
    y, h_n = _fake_states(x, h0, torch.promote_types(w_ih.dtype, h0.dtype))
    return y, h_n, w_ih.new_empty((steps, batch, 4 * h0.shape[1]) if keep else 0)


@torch.library.custom_op(
    "lowtide::gru_layer_backward",
    mutates_args=(),
    schema="(Tensor? grad_y, Tensor? grad_h, Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh,"
    f" Tensor y, Tensor workspace, bool reverse, bool[] needs) -> {_SIX}",
)
def gru_layer_backward(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    y: Tensor,
    workspace: Tensor,
    reverse: bool,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    """Gradients of x, h0, w_ih, w_hh, b_ih, b_hh."""
    if workspace.numel() == 0:
        before = rnn_loop.states_before(y, h0, reverse)
        workspace = rnn_loop.gru_gates(x, before, w_ih, w_hh, b_ih, b_hh)
    grads = rnn_loop.gru_backward((grad_y, grad_h), x, h0, w_ih, w_hh, y, workspace, reverse, needs)
    return tuple(x.new_empty(0) if g is None else g for g in grads)


@gru_layer_backward.register_fake
def _(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    y: Tensor,
    workspace: Tensor,
    reverse: bool,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    return _fake_grads((x, h0, w_ih, w_hh, b_ih, b_hh), needs)


@torch.library.custom_op(
    "lowtide::rnn_layer",
    mutates_args=(),
    schema="(Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, bool relu, bool reverse)"
    " -> (Tensor, Tensor)",
)
def rnn_layer(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    relu: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """x (T, B, I) -> y (T, B, H), h_n (B, H)."""
    with torch.no_grad():
        return rnn_loop.rnn_forward(x, h0, w_ih, w_hh, b_ih, b_hh, relu, reverse)


@rnn_layer.register_fake
def _(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    relu: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    return _fake_states(x, h0, w_ih.dtype)


@torch.library.custom_op(
    "lowtide::rnn_layer_backward",
    mutates_args=(),
    schema="(Tensor? grad_y, Tensor? grad_h, Tensor x, Tensor h0, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh,"
    f" Tensor y, bool relu, bool reverse, bool[] needs) -> {_SIX}",
)
def rnn_layer_backward(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    y: Tensor,
    relu: bool,
    reverse: bool,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    """Gradients of x, h0, w_ih, w_hh, b_ih, b_hh."""
    grads = rnn_loop.rnn_backward((grad_y, grad_h), x, h0, w_ih, w_hh, y, relu, reverse, needs)
    return tuple(x.new_empty(0) if g is None else g for g in grads)


@rnn_layer_backward.register_fake
def _(
    grad_y: Tensor | None,
    grad_h: Tensor | None,
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    y: Tensor,
    relu: bool,
    reverse: bool,
    needs: list[bool],
) -> tuple[Tensor, ...]:
    return _fake_grads((x, h0, w_ih, w_hh, b_ih, b_hh), needs)


def _fake_states(x: Tensor, h0: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:2], h0.shape[1], dtype=dtype)
    return y, h0.new_empty(h0.shape, dtype=dtype)


def _fake_grads(inputs: tuple[Tensor | None, ...], needs: list[bool]) -> tuple[Tensor, ...]:
    x = inputs[0]
    assert x is not None
    return tuple(
        x.new_empty(0) if v is None or not need else v.new_empty(v.shape)
        for v, need in zip(inputs, needs, strict=True)
    )


def _remember_gru(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, reverse, _ = inputs
    y, _, workspace = output
    ctx.save_for_backward(*tensors, y, workspace)
    ctx.mark_non_differentiable(workspace)
    ctx.set_materialize_grads(False)
    ctx.reverse = reverse


def _backward_gru(
    ctx: Any, grad_y: Tensor | None, grad_h: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:6])
    grads = gru_layer_backward(grad_y, grad_h, *ctx.saved_tensors, ctx.reverse, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), None, None)


def _remember_rnn(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, relu, reverse = inputs
    ctx.save_for_backward(*tensors, output[0])
    ctx.set_materialize_grads(False)
    ctx.relu, ctx.reverse = relu, reverse


def _backward_rnn(
    ctx: Any, grad_y: Tensor | None, grad_h: Tensor | None
) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:6])
    grads = rnn_layer_backward(grad_y, grad_h, *ctx.saved_tensors, ctx.relu, ctx.reverse, needs)
    return (*(g if need else None for g, need in zip(grads, needs, strict=True)), None, None)


gru_layer.register_autograd(_backward_gru, setup_context=_remember_gru)
rnn_layer.register_autograd(_backward_rnn, setup_context=_remember_rnn)
