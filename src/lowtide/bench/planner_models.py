"""Which training steps does `lowtide bench planner` plan? Networks of the size they are trained at.

The eight of `bench/models.py`, a language model of GPT-2 small's size, and a translation model of two LSTM layers that is unrolled
over a hundred time steps. They are only ever made of fake tensors, so their sizes cost nothing. Each maker returns a model and a
batch; `model(*batch)` is the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.bench import models
from lowtide.bench.models import Attention, random_tokens

__all__ = ["MAKERS"]

Made = tuple[nn.Module, tuple[Tensor, ...]]


class UnrolledTranslator(nn.Module):
    """Two LSTM layers encode and two decode, all of them cell by cell: every time step is ops of its own."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))
        self.decoder = nn.ModuleList(nn.LSTMCell((2 - i) * width, width) for i in range(2))
        self.key, self.attention = nn.Linear(width, width, bias=False), Attention(width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, said = self.source(source), self.target(target)
        zeros = read.new_zeros(read.shape[0], self.width)
        states = [(zeros, zeros), (zeros, zeros)]
        memories, outputs = [], []
        for t in range(source.shape[1]):
            memories.append(self.step(self.encoder, read[:, t], states))
        memory = torch.stack(memories, 1)
        keys, context = self.key(memory), memory.mean(1)
        for t in range(target.shape[1] - 1):
            h = self.step(self.decoder, torch.cat([said[:, t], context], 1), states)
            context = self.attention(keys, memory, h)
            outputs.append(torch.cat([h, context], 1))
        logits = self.out(torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    def step(self, cells: nn.ModuleList, x: Tensor, states: list[tuple[Tensor, Tensor]]) -> Tensor:
        for layer, cell in enumerate(cells):
            states[layer] = cell(x, states[layer])
            x = states[layer][0]
        return x


def nmt_unrolled(batch: int = 64, length: int = 100, words: int = 10000, width: int = 512) -> Made:
    return UnrolledTranslator(words, width), random_tokens(words, batch, length)


MAKERS: dict[str, Callable[..., Made]] = {
    "resnet50": partial(models.resnet50, batch=64, size=224, width=64),
    "googlenet": partial(models.googlenet, batch=64, size=224),
    "vgg16": partial(models.vgg16, batch=32, size=224, width=64),
    "mobilenet_v2": partial(models.mobilenet_v2, batch=64, size=224),
    "unet": partial(models.unet, batch=8, size=256, width=64),
    "gpt": partial(models.gpt, batch=16, length=512, words=8192, width=512, heads=8),
    "nmt": partial(models.nmt, batch=64, length=50, words=10000, width=512),
    "word_lm": partial(models.word_lm, words=10000, width=650),
    "gpt2_small": partial(
        models.gpt, batch=8, length=1024, words=50257, width=768, layers=12, heads=12
    ),
    "nmt_unrolled": nmt_unrolled,
}
