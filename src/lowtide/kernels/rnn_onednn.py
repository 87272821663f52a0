"""One LSTM layer by oneDNN: when does it apply, how big is its workspace, and how is it called?

This is the kernel that eager training on CPU runs (`aten.mkldnn_rnn_layer`, one call per layer and direction), so its
results are eager's to the bit. What eager hides in its saved tensors is returned here: the workspace, an opaque byte
tensor of about 15 times the layer's output.

Its size is a secret of oneDNN (it depends on the instruction set and on the library's version), and the operator's own
meta function says 0. So the size is asked for by running the layer once per shape on zeros, outside of any tracing.
A symbolic shape is pinned by that, which costs one compilation per shape, as a budget in bytes does anyway.

Two things about the workspace, both found by experiment. Parts of it are never written by the forward run, so two runs
agree on every output but not on every byte of it. And oneDNN's backward uses some of those parts as scratch space: it
writes to the workspace, though never to a byte that a later run of it reads.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["backward", "forward", "supports", "workspace_bytes"]

# ideep's number for LSTM (third_party/ideep, abstract_types.hpp: rnn_kind)
_LSTM = 2


def supports(x: Tensor) -> bool:
    """Whether eager would train a layer without projection on `x` with oneDNN."""
    if x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not torch.backends.mkldnn.enabled or x.numel() == 0:
        return False
    return x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and _bfloat16_supported())


def _bfloat16_supported() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, h_n, c_n and the workspace (empty unless `keep`)."""
    # ATen reads the gradient mode to choose between the training and the inference primitive.
    with torch.set_grad_enabled(keep):
        y, h_n, c_n, workspace = torch.ops.aten.mkldnn_rnn_layer(
            x.contiguous(),
            *_weights(w_ih, w_hh, b_ih, b_hh),
            h0.contiguous(),
            c0.contiguous(),
            reverse,
            [],
            _LSTM,
            c0.shape[-1],
            1,
            b_ih is not None,
            False,
            False,
            keep,
        )
    return y, h_n, c_n, workspace if keep else x.new_empty(0, dtype=torch.uint8)


def backward(
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    outputs: tuple[Tensor, Tensor, Tensor],
    workspace: Tensor,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh (oneDNN always computes them all)."""
    dx, dw_ih, dw_hh, db_ih, db_hh, dh0, dc0 = torch.ops.aten.mkldnn_rnn_layer_backward(
        x.contiguous(),
        *_weights(w_ih, w_hh, b_ih, b_hh),
        h0.contiguous(),
        c0.contiguous(),
        *outputs,
        *grads,
        reverse,
        _LSTM,
        c0.shape[-1],
        1,
        b_ih is not None,
        True,
        False,
        [],
        False,
        workspace,
    )
    # For bfloat16 inputs oneDNN answers in float32 (that path has not been run: no such CPU at hand).
    return tuple(g.to(x.dtype) for g in (dx, dh0, dc0, dw_ih, dw_hh, db_ih, db_hh))  # type: ignore[return-value]


def _weights(
    w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Without biases ATen wants tensors in their place and does not read them.
    return w_ih, w_hh, w_ih if b_ih is None else b_ih, w_hh if b_hh is None else b_hh


def workspace_bytes(x: Tensor, hidden: int) -> int:
    """Exact size of the workspace of a layer over `x` (T, B, I), which may be a fake tensor."""
    steps, batch, width = (int(n) for n in x.shape)
    return _measured_workspace(steps, batch, width, int(hidden), x.dtype)


@cache
def _measured_workspace(steps: int, batch: int, width: int, hidden: int, dtype: torch.dtype) -> int:
    with _disable_current_modes():
        x, w_ih, w_hh, h0, c0 = (
            torch.zeros(shape, dtype=dtype)
            for shape in (
                (steps, batch, width),
                (4 * hidden, width),
                (4 * hidden, hidden),
                (batch, hidden),
                (batch, hidden),
            )
        )
        return forward(x, h0, c0, w_ih, w_hh, None, None, False, True)[3].numel()
