"""Images between channels first and channels last in the same memory, one sample at a time.

Each sample's numbers stay where they are as a block, so a copy of one sample is all that is needed besides.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["channels_first_over", "channels_last_over"]


def channels_last_over(images: Tensor) -> Tensor:
    """From plain contiguous images; these are not there any more."""
    count, channels, height, width = images.shape
    for sample in images.flatten(1):
        pixels = sample.view(channels, height * width).t().contiguous()
        sample.copy_(pixels.view(-1))
    strides = (channels * height * width, 1, width * channels, channels)
    return images.as_strided((count, channels, height, width), strides)


def channels_first_over(images: Tensor) -> Tensor:
    """From channels-last images; these are not there any more."""
    count, channels, height, width = images.shape
    size = channels * height * width
    flat = torch.as_strided(images, (count, size), (size, 1))
    for sample in flat:
        planes = sample.view(height * width, channels).t().contiguous()
        sample.copy_(planes.view(-1))
    return flat.view(count, channels, height, width)
