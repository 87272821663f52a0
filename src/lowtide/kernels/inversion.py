"""A batch norm's and a leaky ReLU's input, or a batch norm's gradients, from the output.

A batch norm's output y is weight * normalised + bias, so the normalised input is (y - bias) / weight. Read like this the output is the input of
another batch norm, one with the mean `bias` and the deviation `weight`: ATen's own kernels, given these numbers, make both the input and the gradients.

The quotient is only as good as the bias is small beside the weight: what the sum of both rounds away is divided by the weight. Where that costs more than
six bits (a weight near zero, a channel that is constant), the channel counts as lost: its input is put by in forward (`spared`) and put
in its place here. So what comes out is right whatever the weights are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lowtide.kernels.normalisation import gradients_by_channels
from lowtide.rules.inverted import room

__all__ = ["gradients_from_output", "gradients_from_output_by_channels", "input_from_output", "lost", "spared"]  # fmt: skip

log = logging.getLogger("lowtide")

_MOST = 64.0
"""Times that rounding may become larger: six bits."""
_LEAST = 1e-6
"""Of a weight, so that its square and what is divided by it stay within float32."""

Gradients = tuple[Tensor, Tensor | None, Tensor | None]


def lost(
    weight: Tensor | None, bias: Tensor | None, rstd: Tensor | None = None, eps: float = 0.0
) -> Any:
    """For each channel, whether its input cannot be had from its output; None if all can. NaN counts as lost.

    `rstd`: 1 / deviation, to see how much of the output is the input. A channel that hardly varies is normalised to almost nothing."""
    if weight is None:
        return None
    factor, beside, inverse = map(_array, (weight, bias, rstd))
    least = abs(factor)
    carries = least
    if inverse is not None:
        carries = least * (1 - eps * inverse * inverse).clip(min=0) ** 0.5
    enough = least > _LEAST
    return ~(enough if beside is None else enough & (carries * _MOST > abs(beside)))


def _array(numbers: Tensor | None) -> Any:
    """For arithmetic on a few numbers, which NumPy starts in a tenth of the time."""
    if numbers is None or numbers.device.type != "cpu":
        return numbers
    return numbers.detach().numpy()


@torch.library.custom_op("lowtide::spared", mutates_args=())
def spared(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, eps: float
) -> Tensor:
    """The channels of `x` that are lost in its batch norm's output: none, mostly."""
    channels = _places(weight, bias, rstd, eps)
    return (
        x.new_empty((x.shape[0], 0, *x.shape[2:]))
        if channels is None
        else x.index_select(1, channels)
    )


@spared.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, eps: float) -> Tensor:
    """Which ones depends on the values: of as many as are expected."""
    return x.new_empty((x.shape[0], 0, *x.shape[2:]))


def input_from_output(
    output: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    kept: Tensor,
    eps: float,
    *,
    over: Tensor | None = None,
) -> Tensor:
    """`kept` is what was spared. `over` is the output itself, if it is not needed any more."""
    made = torch.empty_like(output) if over is None else over
    scale = 1 / (rstd if weight is None else weight * rstd)
    shift = torch.zeros_like(mean) if bias is None else bias
    unused = [mean.new_empty(0) for _ in range(2)]
    torch.ops.aten.native_batch_norm.out(
        output, scale, mean, shift, torch.ones_like(mean), False, 0.0, 0.0,
        out=made, save_mean=unused[0], save_invstd=unused[1],
    )  # fmt: skip
    if kept.shape[1]:
        _tell(kept, output)
        made[:, _places(weight, bias, rstd, eps)] = kept
    return made


def gradients_from_output(
    gradient: Tensor,
    output: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    kept: Tensor,
    eps: float,
    mask: Sequence[bool],
) -> Gradients:
    """As `aten.native_batch_norm_backward` in training mode makes them from the input."""
    numbers = _of_the_inverse(weight, bias, rstd)
    backward = torch.ops.aten.native_batch_norm_backward.default
    found = backward(gradient, output, *numbers, True, eps, mask)
    if kept.shape[1]:
        _tell(kept, output)
        channels = _places(weight, bias, rstd, eps)
        _put(found, channels, gradient[:, channels], kept, weight, mean, rstd, eps, mask)
    return found  # type: ignore[no-any-return]


def gradients_from_output_by_channels(
    gradient: Tensor,
    output: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    kept: Tensor,
    eps: float,
    mask: Sequence[bool],
    *,
    over: Tensor | None = None,
) -> Gradients:
    """The same, a few channels at a time; `over` is the gradient itself, if it is not needed any more."""
    channels = _places(weight, bias, rstd, eps) if kept.shape[1] else None
    before = None if channels is None else gradient[:, channels]
    numbers = _of_the_inverse(weight, bias, rstd)
    found = gradients_by_channels(gradient, output, *numbers, True, eps, mask, over=over)
    if before is not None:
        _tell(kept, output)
        _put(found, channels, before, kept, weight, mean, rstd, eps, mask)
    return found


def _of_the_inverse(
    weight: Tensor | None, bias: Tensor | None, rstd: Tensor
) -> tuple[Tensor, None, None, Tensor, Tensor]:
    """Of the batch norm whose input our output is: weight, no running statistics, mean and 1 / deviation. Its weight takes the chain rule's factors:
    that by 1 / deviation is ours by ours."""
    mean = torch.zeros_like(rstd) if bias is None else bias
    if weight is None:
        return rstd, None, None, mean, torch.ones_like(rstd)
    return weight.square() * rstd, None, None, mean, 1 / weight


def _put(
    found: Gradients,
    channels: Tensor | None,
    gradient: Tensor,
    kept: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    mask: Sequence[bool],
) -> None:
    """The gradients of these channels, made from their input."""
    assert channels is not None
    numbers = (None if t is None else t[channels] for t in (weight, None, None, mean, rstd))
    right = torch.ops.aten.native_batch_norm_backward.default(
        gradient, kept, *numbers, True, eps, mask
    )
    if mask[0]:
        found[0][:, channels] = right[0]
    for made, one in zip(found[1:], right[1:], strict=True):
        if made is not None:
            made[channels] = one


def _places(weight: Tensor | None, bias: Tensor | None, rstd: Tensor, eps: float) -> Tensor | None:
    """The lost channels' numbers, None if there are none. Forward and backward ask with the same numbers, and get the same answer."""
    those = lost(weight, bias, rstd, eps)
    if those is None or not those.any():
        return None
    return torch.as_tensor(those).nonzero().flatten()


def _tell(kept: Tensor, output: Tensor) -> None:
    """Once, if it is more than planned. Not where it is put by: that is measured with made-up weights, too."""
    if kept.shape[1] > room(tuple(output.shape)):
        _warn(tuple(output.shape[1:]))


@cache
def _warn(shape: tuple[int, ...]) -> None:
    log.warning(
        "a batch norm of %d channels has many weights so near zero that the input of these channels cannot be made from the output: it "
        "is kept, which takes memory that was not planned for. Fit again to plan with the weights as they are now",
        shape[0],
    )
