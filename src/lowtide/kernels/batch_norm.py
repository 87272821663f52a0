"""A batch norm in two: the statistics of all channels, and then normalising, adding and activating in one pass.

ATen adds a channel's numbers up one after the other, in double precision: each sum waits for the one before, and that, not memory, is what a batch norm
takes so long for. Here eight channels are added up side by side, each still in ATen's order: the same bits, in a quarter of the time.

What is done with the normalised numbers, one by one, is done in the pass that makes them: a sum with another tensor, a ReLU or a hardtanh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowtide.kernels.columns import ROWS, add_columns
from lowtide.kernels.loops import flat, fused, inline, loop, spread
from lowtide.kernels.statistics import normalised

__all__ = ["LOOPED", "activated", "as_captured", "counted", "statistics"]

LOOPED = (torch.float32, torch.float64)


def counted(
    x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor | None, ...]:
    """As a batch norm in training, without its output."""
    return None, *statistics(x, running_mean, running_var, momentum, eps)


@torch.library.custom_op("lowtide::batch_norm_statistics", mutates_args=())
def statistics(
    x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, 1 / deviation, and the running mean and variance after this batch."""
    samples, channels = x.shape[:2]
    mean, squares = x.new_empty(channels), x.new_empty(channels)
    spread(
        _count, -(-channels // ROWS), 2 * ROWS * x.numel() // channels,
        flat(x), samples, channels, x.numel() // (samples * channels), mean.numpy(), squares.numpy(),
    )  # fmt: skip
    # NumPy would warn of what is no number, or too large for one; ATen does not.
    with np.errstate(all="ignore"):
        finished = _finished(mean.numpy(), squares.numpy(), x.numel() // channels, running_mean.numpy(), running_var.numpy(), momentum, eps)  # fmt: skip
    return mean, *(torch.from_numpy(made).to(x.dtype) for made in finished)


def _finished(
    mean: Any,
    sums: Any,
    count: int,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """1 / deviation and the running averages, in ATen's order and types, which are others for the mean than for the variance."""
    kind, wide = sums.dtype.type, np.float64
    rstd = 1 / np.sqrt((sums / kind(count)).astype(wide) + eps)
    stays, comes = kind(1) - kind(momentum), kind(momentum)
    unbiased = (sums / kind(count - 1)).astype(wide)
    return (
        rstd,
        comes * mean + stays * running_mean,
        wide(comes) * unbiased + (stays * running_var).astype(wide),
    )


@statistics.register_fake
def _(
    x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    channels = x.shape[1]
    return (
        x.new_empty(channels), x.new_empty(channels), torch.empty_like(running_mean), torch.empty_like(running_var),
    )  # fmt: skip


def activated(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    plus: Tensor | None,
    low: float | None,
    high: float | None,
    *,
    over: Tensor | None = None,
) -> Tensor:
    """Normalised, `plus` a tensor, then within bounds; `over` is `x` or `plus`, if it is not needed any more."""
    made = torch.empty_like(x) if over is None else over
    samples, channels = x.shape[:2]
    values = flat(x)
    kind = values.dtype.type
    scale = rstd if weight is None else rstd * weight
    least, most = (kind(np.nan if n is None else n) for n in (low, high))
    spread(
        _activate, samples * channels, x.numel() // (samples * channels), values, channels, x.numel() // (samples * channels),
        scale.numpy(), mean.numpy(), (torch.zeros_like(mean) if bias is None else bias.detach()).numpy(),
        flat(x if plus is None else plus), plus is not None, least, most, flat(made),
    )  # fmt: skip
    return made


def as_captured(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    plus: Tensor | None,
    calls: Sequence[tuple[Callable[..., Tensor], Sequence[Any]]],
) -> Tensor:
    """The same by ATen's ops, one pass each."""
    (made,) = normalised(x, weight, bias, mean, rstd)
    if plus is not None:
        made = made + plus
    for call, more in calls:
        made = call(made, *more)
    return made


@loop
def _count(first, last, x, samples, channels, plane, means, squares):  # type: ignore[no-untyped-def]
    """Eights of channels; the last begins so early that it is whole, and what it does once more comes out the same."""
    mean, total = np.zeros(ROWS, x.dtype), np.zeros(ROWS, np.float64)
    for eight in range(first, last):
        start = max(0, min(eight * ROWS, channels - ROWS))
        end = min(start + ROWS, channels)
        mean[:], total[:] = 0, 0
        _add_up(x, samples, channels, plane, start, end, mean, total, False)
        for channel in range(start, end):
            means[channel] = total[channel - start] / np.float64(samples * plane)
            mean[channel - start] = means[channel]
        total[:] = 0
        _add_up(x, samples, channels, plane, start, end, mean, total, True)
        squares[start:end] = total[: end - start]


@inline
def _add_up(x, samples, channels, plane, start, end, mean, total, squared):  # type: ignore[no-untyped-def]
    """Of each channel the numbers, or the squares of how far they are from its mean: rounded before they are added."""
    whole = plane // ROWS * ROWS if x.itemsize == 4 and end - start == ROWS else 0
    for sample in range(samples):
        here = (sample * channels + start) * plane
        if whole:
            add_columns(
                x.ctypes.data + here * 4,
                plane * 4,
                whole,
                mean.ctypes.data,
                total.ctypes.data,
                squared,
            )
        for j in range(end - start):
            if whole < plane:
                sum_, middle = total[j], mean[j]
                for k in range(here + j * plane + whole, here + (j + 1) * plane):
                    one = x[k] - middle if squared else x[k]
                    sum_ += np.float64(one * one if squared else one)
                total[j] = sum_


@loop
def _activate(first, last, x, channels, plane, scale, mean, bias, plus, adds, low, high, made):  # type: ignore[no-untyped-def]
    """Planes. A bound that is no number bounds nothing; a NaN stays one, and so does the sign of a zero."""
    for number in range(first, last):
        channel = number % channels
        factor = scale[channel]
        offset = fused(-mean[channel], factor, bias[channel])
        begin = np.uint64(number * plane)
        if adds:
            for k in range(begin, begin + np.uint64(plane)):
                value = fused(x[k], factor, offset) + plus[k]
                value = max(value, low)
                made[k] = min(value, high)
        else:
            for k in range(begin, begin + np.uint64(plane)):
                value = fused(x[k], factor, offset)
                value = max(value, low)
                made[k] = min(value, high)
