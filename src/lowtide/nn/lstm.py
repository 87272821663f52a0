"""`torch.nn.LSTM` that keeps a third of the memory between forward and backward, or a tenth.

Same constructor, parameters, `state_dict` and results (to rounding: sums are added up in another order). The compiled kernel is for float32 on
CPU, in the way that was the fastest when it was measured (`nn.autotune`); other dtypes and devices, autocast and projections run as a loop of
torch's ops over the steps, packed sequences as torch's own layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lowtide.errors import OptionError, did_you_mean
from lowtide.kernels import rnn, rnn_fused
from lowtide.nn import autotune

__all__ = ["LSTM"]

_KEEP = ("gates", "states", "any")


class LSTM(nn.LSTM):
    """`keep="gates"`: four numbers per output, which backward reads, or five where that is clearly faster. `keep="states"`: none; backward
    computes the gates again, for about a third more time. `keep="any"`: whatever is the fastest, be it torch's own kernel, which keeps
    fifteen."""

    def __init__(self, *args: Any, keep: str = "gates", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if keep not in _KEEP:
            raise OptionError(
                f"keep={keep!r} is not known{did_you_mean(keep, list(_KEEP))} Known: {', '.join(_KEEP)}"
            )
        self.keep = keep

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence) or input.dim() not in (2, 3) or input.numel() == 0:
            return super().forward(input, hx)
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            hx = None if hx is None else tuple(state.unsqueeze(1) for state in hx)
        hx = self._zeros(input) if hx is None else hx
        self.check_forward_args(input, hx, None)
        y, *states = rnn.lstm(
            input, hx, self._flat_weights, self.bias, self.num_layers, self.dropout, self.training,
            self.bidirectional, self.batch_first, self._kernel(input), self.keep != "states",
        )  # fmt: skip
        if not batched:
            y = y.squeeze(0 if self.batch_first else 1)
            states = [state.squeeze(1) for state in states]
        return y, tuple(states)

    def _kernel(self, input: Tensor) -> str:
        plain = not self.proj_size and not torch.is_autocast_enabled(input.device.type)
        if not plain or not rnn_fused.supports(input, None):
            return ""
        if not (torch.is_grad_enabled() and self.training):
            return "fused"
        x = input.transpose(0, 1) if self.batch_first else input
        return autotune.choose(x, self.hidden_size, any_memory=self.keep == "any")

    def _zeros(self, input: Tensor) -> tuple[Tensor, Tensor]:
        directions = 2 if self.bidirectional else 1
        batch = input.shape[0 if self.batch_first else 1]
        layers = self.num_layers * directions
        h = input.new_zeros(layers, batch, self.proj_size or self.hidden_size)
        return h, input.new_zeros(layers, batch, self.hidden_size) if self.proj_size else h
