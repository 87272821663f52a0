"""200 optimizer steps of a small residual network: the same losses with and without a plan, to the bit or within noise."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lowtide

pytestmark = pytest.mark.slow
STEPS = 200


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(3))
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(y)) + self.norms[2](self.short(x)))


class Residual(nn.Module):
    """ResNet-18's shape: four stages of two blocks, narrow."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 8, 16, 32, 64]
        blocks = [
            Block(i if one == 0 else o, o, 2 if one == 0 and i != o else 1)
            for i, o in pairwise(widths)
            for one in range(2)
        ]
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks)
        self.head = nn.Linear(64, 4)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        pooled = F.dropout(self.body(images).mean((2, 3)), 0.1, self.training)
        return F.cross_entropy(self.head(pooled), labels)


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Which quarter is bright?"""
    generator = torch.Generator().manual_seed(number)
    labels = torch.randint(4, (12,), generator=generator)
    images = torch.randn(12, 3, 16, 16, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 8 * (label // 2), 8 * (label % 2)
        image[:, row : row + 8, column : column + 8] += 0.5
    return images, labels


def losses(model: nn.Module) -> list[float]:
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(*batch(number))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def planned(model: nn.Module, **options: Any) -> nn.Module:
    twin = copy.deepcopy(model)
    plan = lowtide.fit(twin, batch(0), seconds=3.0, **options)
    twin.load_state_dict(model.state_dict())
    assert plan.recomputed or any(plan.graph.op[n].rule for n in plan.program.counts)
    return twin


def test_the_same_curve():
    torch.manual_seed(0)
    model = Residual()
    exact = planned(model, budget="55%")
    rounded = planned(model, budget="45%", allow=("rounding",))
    lossy = planned(model, budget="45%", allow=("lossy",))
    expected = losses(model)
    assert losses(exact) == expected
    end = sum(expected[-40:]) / 40
    assert end < 0.5 * sum(expected[:10]) / 10, "it learns something"
    for other in (rounded, lossy):
        assert sum(losses(other)[-40:]) / 40 == pytest.approx(end, abs=0.1)
