"""`torch.nn.GRU` that keeps four numbers per output between forward and backward, where torch keeps seven, or none.

Same constructor, parameters, `state_dict` and results (to rounding: sums are added up in another order). A loop of torch's ops over the steps,
as torch's own on CPU, in every dtype and under autocast; backward is one loop, too, and not one node of autograd for each op of each step.
Packed sequences run as torch's own layer, and so does CUDA, where torch has cuDNN's.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lowtide.errors import OptionError, did_you_mean
from lowtide.kernels import rnn

__all__ = ["GRU"]

_KEEP = ("gates", "states")


class GRU(nn.GRU):
    """`keep="gates"`: four numbers per output, which backward reads. `keep="states"`: none; backward computes the gates again, all steps at
    once."""

    def __init__(self, *args: Any, keep: str = "gates", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if keep not in _KEEP:
            raise OptionError(
                f"keep={keep!r} is not known{did_you_mean(keep, list(_KEEP))} Known: {', '.join(_KEEP)}"
            )
        self.keep = keep

    def forward(self, input: Any, hx: Any = None) -> Any:
        if not self._ours(input):
            return super().forward(input, hx)
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            hx = None if hx is None else hx.unsqueeze(1)
        hx = self._zeros(input) if hx is None else hx
        self.check_forward_args(input, hx, None)
        y, h_n = rnn.gru(
            input, hx, self._flat_weights, self.bias, self.num_layers, self.dropout, self.training,
            self.bidirectional, self.batch_first, self.keep == "gates",
        )  # fmt: skip
        if not batched:
            return y.squeeze(0 if self.batch_first else 1), h_n.squeeze(1)
        return y, h_n

    def _ours(self, input: Any) -> bool:
        if isinstance(input, PackedSequence) or input.dim() not in (2, 3) or input.numel() == 0:
            return False
        return input.device.type != "cuda"

    def _zeros(self, input: Tensor) -> Tensor:
        layers = self.num_layers * (2 if self.bidirectional else 1)
        batch = input.shape[0 if self.batch_first else 1]
        return input.new_zeros(layers, batch, self.hidden_size)
