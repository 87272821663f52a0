"""One recurrent layer as a loop of ATen ops: LSTM (with projection), GRU and plain RNN, forward and backward.

For whatever oneDNN does not do: other dtypes, projections, GRU and RNN, other devices. It has run on CPU only; nothing in
it is CPU's, but no other device was at hand.

The shape of every loop is the same. Forward: one GEMM for the input part of all steps, straight into the buffer that
becomes the workspace; then one small GEMM and a few elementwise ops per step, in place. Backward: all that does not
depend on the recurrence is computed for all steps at once, as factors K such that the gradient of a gate before its
activation is K times the gradient that arrives; the loop multiplies in place and runs one small GEMM per step; the
gradients of the weights are one GEMM each over all steps. Nothing here draws random numbers or uses atomics, so a second
run gives the same bits.

Dtypes may differ in one way, which is autocast's: the gates have the weights' dtype, the states may be wider.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "gru_backward",
    "gru_forward",
    "lstm_backward",
    "lstm_forward",
    "rnn_backward",
    "rnn_forward",
]

_tanh_backward: Callable[[Tensor, Tensor], Tensor] = torch.ops.aten.tanh_backward.default
# The same derivatives written straight into a part of a buffer.
_tanh_backward_to: Callable[..., Tensor] = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward_to: Callable[..., Tensor] = torch.ops.aten.sigmoid_backward.grad_input


def lstm_forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, h_n, c_n and the gates (T, B, 4H) in ATen's order: input, forget, cell, output."""
    hidden = c0.shape[1]
    gates = _input_gates(x, w_ih, _sum(b_ih, b_hh), w_ih.shape[0])
    y = _outputs(x, h0.shape[1], gates.dtype if w_hr is not None else _wider(gates, c0))
    h, c = h0, c0
    for t in _steps(x, reverse):
        gate = gates[t].addmm_(h.to(gates.dtype), w_hh.t())
        gate[:, : 2 * hidden].sigmoid_()
        gate[:, 2 * hidden : 3 * hidden].tanh_()
        gate[:, 3 * hidden :].sigmoid_()
        i, f, g, o = gate.chunk(4, 1)
        c = torch.mul(f, c).add_(i * g)
        h = y[t]
        if w_hr is None:
            torch.mul(o, c.tanh(), out=h)
        else:
            torch.mm((o * c.tanh()).to(w_hr.dtype), w_hr.t(), out=h)
    return y, h.clone(), c, gates


def lstm_backward(
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None,
    y: Tensor,
    gates: Tensor,
    reverse: bool,
    needs: list[bool],
) -> list[Tensor | None]:
    """Gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr; None where not needed.

    The cell states are run again from the gates, elementwise: same bits as in forward, and T*B*H fewer values to keep.
    """
    grad_y, grad_h, grad_c = grads
    _, f, _, o = gates.chunk(4, 2)
    factors, to_c, tanh_c = _lstm_factors(gates, c0, reverse)
    to_o = factors.chunk(4, 2)[3]
    dc = torch.zeros_like(c0) if grad_c is None else grad_c
    dh = torch.zeros_like(h0) if grad_h is None else grad_h
    dys = []
    for t in reversed(_steps(x, reverse)):
        dh = dh if grad_y is None else dh + grad_y[t]
        if w_hr is not None:
            dys.append(dh.to(w_hr.dtype))
            dh = torch.mm(dys[-1], w_hr)
        dc = torch.addcmul(dc, dh.to(dc.dtype), to_c[t])
        to_o[t].mul_(dh)
        factors[t].unflatten(1, (4, -1))[:, :3].mul_(dc.unsqueeze(1))
        dc = dc * f[t]
        dh = torch.mm(factors[t], w_hh).to(h0.dtype)
    wanted = (needs[0], needs[3], needs[4], needs[5] or needs[6])
    dx, dw_ih, dw_hh, db = _parameter_grads(x, h0, w_ih, y, factors, reverse, wanted)
    dw_hr = None
    if w_hr is not None and needs[7]:
        inner = (o * tanh_c).to(w_hr.dtype)
        dy = torch.stack(dys if reverse else dys[::-1])
        dw_hr = torch.mm(dy.flatten(0, 1).t(), inner.flatten(0, 1))
    db_hh = db.clone() if db is not None else None
    return _where(needs, [dx, dh, dc, dw_ih, dw_hh, db, db_hh, dw_hr])


def _lstm_factors(gates: Tensor, c0: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What multiplies the gradients of c (first three gates) and of h (output gate, and c); and tanh(c)."""
    i, f, g, o = gates.chunk(4, 2)
    cells, before = _cell_states(i, f, g, c0, reverse)
    tanh_c = cells.tanh_()
    factors = torch.empty_like(gates)
    to_i, to_f, to_g, to_o = factors.chunk(4, 2)
    _sigmoid_backward_to(g, i, grad_input=to_i)
    _sigmoid_backward_to(before, f, grad_input=to_f)
    _tanh_backward_to(i, g, grad_input=to_g)
    _sigmoid_backward_to(tanh_c, o, grad_input=to_o)
    return factors, _tanh_backward(o.to(tanh_c.dtype), tanh_c), tanh_c


def _cell_states(
    i: Tensor, f: Tensor, g: Tensor, c0: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """The cell state after and before every step."""
    cells = i.new_empty(i.shape, dtype=_wider(i, c0))
    before = torch.empty_like(cells)
    c = c0
    for t in _steps(i, reverse):
        before[t] = c
        c = torch.mul(f[t], c, out=cells[t]).add_(i[t] * g[t])
    return cells, before


def gru_forward(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, h_n and the workspace (T, B, 4H): reset, update and new gate, and the hidden part of the new gate."""
    hidden = h0.shape[1]
    work = _input_gates(x, w_ih, b_ih, 4 * hidden)
    y = _outputs(x, hidden, _wider(work, h0))
    h = h0
    for t in _steps(x, reverse):
        hgates = _affine(h.to(work.dtype), w_hh, b_hh)
        r, z, n, from_h = work[t].chunk(4, 1)
        work[t, :, : 2 * hidden].add_(hgates[:, : 2 * hidden]).sigmoid_()
        from_h.copy_(hgates[:, 2 * hidden :])
        n.addcmul_(r, from_h).tanh_()
        h = torch.sub(h, n, out=y[t]).mul_(z).add_(n)
    return y, h.clone(), work


def gru_gates(
    x: Tensor,
    before: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> Tensor:
    """The workspace again, of all steps at once, from the hidden states before them (T, B, H)."""
    hidden = w_hh.shape[1]
    work = _input_gates(x, w_ih, b_ih, 4 * hidden)
    hgates = _affine(before.to(work.dtype).flatten(0, 1), w_hh, b_hh).view(*x.shape[:2], -1)
    r, _, n, from_h = work.chunk(4, 2)
    work[..., : 2 * hidden].add_(hgates[..., : 2 * hidden]).sigmoid_()
    from_h.copy_(hgates[..., 2 * hidden :])
    n.addcmul_(r, from_h).tanh_()
    return work


def states_before(y: Tensor, h0: Tensor, reverse: bool) -> Tensor:
    """The hidden state before every step."""
    first = h0.to(y.dtype).unsqueeze(0)
    return torch.cat([y[1:], first] if reverse else [first, y[:-1]])


def gru_backward(
    grads: tuple[Tensor | None, Tensor | None],
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    y: Tensor,
    work: Tensor,
    reverse: bool,
    needs: list[bool],
) -> list[Tensor | None]:
    """Gradients of x, h0, w_ih, w_hh, b_ih, b_hh; None where not needed."""
    grad_y, grad_h = grads
    hidden = h0.shape[1]
    r, z, n, from_h = work.chunk(4, 2)
    # In this order the three that reach the input (n, r, z) and the three that reach h (r, z, from_h) are both slices.
    factors = torch.empty_like(work)
    to_n, to_r, to_z, to_from_h = factors.chunk(4, 2)
    _tanh_backward_to(1 - z, n, grad_input=to_n)
    torch.mul(to_n, r, out=to_from_h)
    _sigmoid_backward_to(to_n * from_h, r, grad_input=to_r)
    before = states_before(y, h0, reverse)
    _sigmoid_backward_to(before - n, z, grad_input=to_z)
    dh = torch.zeros_like(h0) if grad_h is None else grad_h
    for t in reversed(_steps(x, reverse)):
        dh = dh if grad_y is None else dh + grad_y[t]
        factors[t].unflatten(1, (4, -1)).mul_(dh.unsqueeze(1))
        dh = (dh * z[t]).add_(torch.mm(factors[t, :, hidden:], w_hh))
    from_x, from_state = (
        factors[..., : 3 * hidden].flatten(0, 1),
        factors[..., hidden:].flatten(0, 1),
    )
    dx = torch.mm(from_x, _rotated(w_ih, hidden)).view(x.shape) if needs[0] else None
    dw_ih = torch.mm(from_x.t(), x.flatten(0, 1)) if needs[2] else None
    dw_hh = torch.mm(from_state.t(), before.to(work.dtype).flatten(0, 1)) if needs[3] else None
    db_ih, db_hh = (part.sum(0) if needs[k] else None for part, k in ((from_x, 4), (from_state, 5)))
    dw_ih, db_ih = (None if g is None else _rotated(g, -hidden) for g in (dw_ih, db_ih))
    return _where(needs, [dx, dh, dw_ih, dw_hh, db_ih, db_hh])


def _rotated(w: Tensor, by: int) -> Tensor:
    """Rows (r, z, n) of an input weight as (n, r, z), or back for a negative `by`."""
    return torch.roll(w, by, 0)


def rnn_forward(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    relu: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """y and h_n. The backward pass needs no more than y."""
    y = _input_gates(x, w_ih, _sum(b_ih, b_hh), w_ih.shape[0])
    activate = Tensor.relu_ if relu else Tensor.tanh_
    h = h0
    for t in _steps(x, reverse):
        h = activate(y[t].addmm_(h.to(y.dtype), w_hh.t()))
    return y, h.clone()


def rnn_backward(
    grads: tuple[Tensor | None, Tensor | None],
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    y: Tensor,
    relu: bool,
    reverse: bool,
    needs: list[bool],
) -> list[Tensor | None]:
    """Gradients of x, h0, w_ih, w_hh, b_ih, b_hh; None where not needed."""
    grad_y, grad_h = grads
    factors = (y > 0).to(y.dtype) if relu else _tanh_backward(torch.ones_like(y), y)
    dh = torch.zeros_like(h0) if grad_h is None else grad_h
    for t in reversed(_steps(x, reverse)):
        dh = dh if grad_y is None else dh + grad_y[t]
        dh = torch.mm(factors[t].mul_(dh), w_hh)
    wanted = (needs[0], needs[2], needs[3], needs[4] or needs[5])
    dx, dw_ih, dw_hh, db = _parameter_grads(x, h0, w_ih, y, factors, reverse, wanted)
    db_hh = db.clone() if db is not None else None
    return _where(needs, [dx, dh.to(h0.dtype), dw_ih, dw_hh, db, db_hh])


def _parameter_grads(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    y: Tensor,
    dgates: Tensor,
    reverse: bool,
    wanted: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, w_ih, w_hh and of a bias, from those of the gates of all steps."""
    flat = dgates.flatten(0, 1)
    dx = torch.mm(flat, w_ih).view(x.shape) if wanted[0] else None
    dw_ih = torch.mm(flat.t(), x.flatten(0, 1)) if wanted[1] else None
    dw_hh = None
    if wanted[2]:
        dw_hh = torch.mm(flat.t(), states_before(y, h0, reverse).to(flat.dtype).flatten(0, 1))
    return dx, dw_ih, dw_hh, flat.sum(0) if wanted[3] else None


def _where(needs: list[bool], grads: list[Tensor | None]) -> list[Tensor | None]:
    return [g if need else None for g, need in zip(grads, needs, strict=True)]


def _input_gates(x: Tensor, w_ih: Tensor, bias: Tensor | None, width: int) -> Tensor:
    """(T, B, width), the first columns filled with the input part of the gates of all steps."""
    steps, batch = x.shape[:2]
    gates = x.new_empty(steps * batch, width)
    target = gates[:, : w_ih.shape[0]]
    if bias is None:
        torch.mm(x.flatten(0, 1), w_ih.t(), out=target)
    else:
        torch.addmm(bias, x.flatten(0, 1), w_ih.t(), out=target)
    return gates.view(steps, batch, width)


def _affine(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, w.t()) if bias is None else torch.addmm(bias, x, w.t())


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else a + b


def _outputs(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(*x.shape[:2], width, dtype=dtype)


def _wider(a: Tensor, b: Tensor) -> torch.dtype:
    return torch.promote_types(a.dtype, b.dtype)


def _steps(x: Tensor, reverse: bool) -> range:
    return range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
