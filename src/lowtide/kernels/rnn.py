"""What `torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` compute, with one op per layer and direction.

Same arguments and results as ATen's functions on padded (not packed) input; `capture.rnn` puts these in their place.
Composed here: layers, directions, dropout between layers and autocast. All of it in eager's order, so that dropout draws
the same random numbers.

Autocast follows eager. A layer that eager gives to a fused kernel (oneDNN's LSTM on CPU, cuDNN on CUDA) runs wholly in
the low precision. One that eager composes of ATen ops has low-precision gates; the states of LSTM and GRU keep their
dtype. Where eager fails because the CPU has no oneDNN kernel for the low precision, the loop runs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowtide.kernels import rnn_onednn
from lowtide.kernels.rnn_gru import gru_layer, rnn_layer
from lowtide.kernels.rnn_lstm import choose_kernel, run_layer

__all__ = ["gru", "lstm", "rnn_relu", "rnn_tanh"]

Cell = Callable[[Tensor, int, bool], tuple[Tensor, ...]]
"""(x, number of the layer and direction, reverse) -> (y, final states)."""


def lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    kernel: str = "",
    keep: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.lstm`: y, h_n, c_n. By the kernel that eager would use, or by the named one; "fused" can do without keeping its gates."""
    h0, c0 = hx
    has_projection = h0.shape[2] != c0.shape[2]
    weights = _by_layer(params, has_biases, has_projection)
    fused = _eager_is_fused(input, has_projection)
    trains = _wants_gradient(input, h0, c0, *params)

    def cell(x: Tensor, index: int, reverse: bool) -> tuple[Tensor, ...]:
        h, c = h0[index], c0[index]
        x, *layer = _autocast(x, *weights[index])
        if fused:
            h, c = _autocast(h, c)
        w_ih, w_hh, b_ih, b_hh, w_hr = layer
        chosen = kernel or choose_kernel(x, w_hr)
        kept = trains and (keep or not chosen.startswith("fused"))
        return run_layer(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, chosen, kept)[:3]

    y, h_n, c_n = _stack(cell, input, num_layers, dropout, train, bidirectional, batch_first)
    return y, h_n, c_n


def gru(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    keep: bool = True,
) -> tuple[Tensor, Tensor]:
    """`torch.gru`: y, h_n. It can do without keeping its gates."""
    weights = _by_layer(params, has_biases, False)
    keep = keep and _wants_gradient(input, hx, *params)

    def cell(x: Tensor, index: int, reverse: bool) -> tuple[Tensor, ...]:
        h = hx[index]
        if x.device.type == "cuda":
            (h,) = _autocast(h)
        x, w_ih, w_hh, b_ih, b_hh, _ = _autocast(x, *weights[index])
        return gru_layer(x, h, w_ih, w_hh, b_ih, b_hh, reverse, keep)[:2]

    y, h_n = _stack(cell, input, num_layers, dropout, train, bidirectional, batch_first)
    return y, h_n


def rnn_tanh(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """`torch.rnn_tanh`: y, h_n."""
    cell = _rnn_cell(hx, _by_layer(params, has_biases, False), relu=False)
    y, h_n = _stack(cell, input, num_layers, dropout, train, bidirectional, batch_first)
    return y, h_n


def rnn_relu(
    input: Tensor,
    hx: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """`torch.rnn_relu`: y, h_n."""
    cell = _rnn_cell(hx, _by_layer(params, has_biases, False), relu=True)
    y, h_n = _stack(cell, input, num_layers, dropout, train, bidirectional, batch_first)
    return y, h_n


def _rnn_cell(hx: Tensor, weights: list[list[Tensor | None]], relu: bool) -> Cell:
    def cell(x: Tensor, index: int, reverse: bool) -> tuple[Tensor, ...]:
        x, h, w_ih, w_hh, b_ih, b_hh, _ = _autocast(x, hx[index], *weights[index])
        return rnn_layer(x, h, w_ih, w_hh, b_ih, b_hh, relu, reverse)

    return cell


def _stack(
    cell: Cell,
    x: Tensor,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run all layers and directions; y and the final states, each stacked over layers and directions."""
    if batch_first:
        x = x.transpose(0, 1)
    directions = (False, True) if bidirectional else (False,)
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for reverse in directions:
            y, *final = cell(x, len(finals), reverse)
            outputs.append(y)
            finals.append(tuple(final))
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    if batch_first:
        x = x.transpose(0, 1)
    return x, *(torch.stack(states) for states in zip(*finals, strict=True))


def _by_layer(
    params: Sequence[Tensor], has_biases: bool, has_projection: bool
) -> list[list[Tensor | None]]:
    """The flat list of parameters as one (w_ih, w_hh, b_ih, b_hh, w_hr) per layer and direction."""
    size = 2 + 2 * has_biases + has_projection
    layers: list[list[Tensor | None]] = []
    for start in range(0, len(params), size):
        group = list(params[start : start + size])
        biases = group[2:4] if has_biases else [None, None]
        layers.append([*group[:2], *biases, group[-1] if has_projection else None])
    return layers


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _eager_is_fused(x: Tensor, has_projection: bool) -> bool:
    return x.device.type == "cuda" or (not has_projection and rnn_onednn.supports(x))


def _autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors as autocast's low-precision ops would take them."""
    taken: list[Tensor | None] = []
    for t in tensors:
        low = None if t is None else _autocast_dtype(t)
        taken.append(t if t is None or low is None else t.to(low))
    return taken


def _autocast_dtype(t: Tensor) -> torch.dtype | None:
    """None: as it is."""
    device = t.device.type
    if not torch.is_autocast_enabled(device):
        return None
    eligible = t.is_floating_point() and t.dtype != torch.float64
    return torch.get_autocast_dtype(device) if eligible else None
