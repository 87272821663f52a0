"""ResNet-50 in plain PyTorch, as it is in the paper: widths 64 to 2048, bottleneck blocks 3-4-6-3, loss included.

Nothing here knows Lowtide.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x), inplace=True)


class ResNet50(nn.Module):
    """Returns the loss of a labelled batch."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        stages = []
        for index, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512))):
            stage = []
            for block in range(blocks):
                stage.append(Bottleneck(inputs, width, 2 if block == 0 and index > 0 else 1))
                inputs = 4 * width
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def random_batch(batch: int, size: int = 224, classes: int = 1000) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
