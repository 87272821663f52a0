"""Which training steps does `lowtide bench planner` plan? Networks of the size they are trained at, in plain PyTorch.

The eight families of the Echo, EcoRNN and MONeT evaluations, a language model of GPT-2 small's size, and a translation model of two LSTM
layers that is unrolled over a hundred time steps. They are only ever made of fake tensors, so their sizes cost nothing. Each maker
returns a model and a batch; `model(*batch)` is the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MAKERS", "Made", "gpt"]

Made = tuple[nn.Module, tuple[Tensor, ...]]


def _images(batch: int, side: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, side, side), torch.randint(0, 1000, (batch,))


def _tokens(words: int, *shape: int) -> tuple[Tensor, ...]:
    return torch.randint(0, words, shape), torch.randint(0, words, shape)


def _unit(
    before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: str = "relu"
) -> nn.Sequential:
    """Convolution, batch norm, and mostly a ReLU."""
    padding = kernel // 2
    conv = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
    ends = {"relu": [nn.ReLU(inplace=True)], "relu6": [nn.ReLU6(inplace=True)], "none": []}
    return nn.Sequential(conv, nn.BatchNorm2d(after), *ends[act])


class Classifier(nn.Module):
    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(images).mean((2, 3))), labels)


class Bottleneck(nn.Module):
    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.main = nn.Sequential(
            _unit(before, middle, 1),
            _unit(middle, middle, 3, stride),
            _unit(middle, after, 1, act="none"),
        )
        same = stride == 1 and before == after
        self.side = nn.Identity() if same else _unit(before, after, 1, stride, act="none")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.side(x), inplace=True)


def resnet50(batch: int = 64, side: int = 224) -> Made:
    layers: list[nn.Module] = [_unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            middle = 64 << stage
            layers.append(Bottleneck(channels, middle, 2 if stage and not block else 1))
            channels = 4 * middle
    return Classifier(nn.Sequential(*layers), channels), _images(batch, side)


class Inception(nn.Module):
    def __init__(self, before: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:  # fmt: skip
        super().__init__()
        self.one = _unit(before, one, 1)
        self.three = nn.Sequential(_unit(before, three[0], 1), _unit(*three))
        self.five = nn.Sequential(_unit(before, five[0], 1), _unit(*five))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), _unit(before, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def googlenet(batch: int = 64, side: int = 224) -> Made:
    def smaller() -> nn.Module:
        return nn.MaxPool2d(3, 2, 1)

    body = nn.Sequential(
        _unit(3, 64, 7, 2), smaller(), _unit(64, 64, 1), _unit(64, 192), smaller(),
        Inception(192, 64, (96, 128), (16, 32), 32),
        Inception(256, 128, (128, 192), (32, 96), 64), smaller(),
        Inception(480, 192, (96, 208), (16, 48), 64),
        Inception(512, 160, (112, 224), (24, 64), 64),
        Inception(512, 128, (128, 256), (24, 64), 64),
        Inception(512, 112, (144, 288), (32, 64), 64),
        Inception(528, 256, (160, 320), (32, 128), 128), smaller(),
        Inception(832, 256, (160, 320), (32, 128), 128),
        Inception(832, 384, (192, 384), (48, 128), 128), nn.Dropout(0.2),
    )  # fmt: skip
    return Classifier(body, 1024), _images(batch, side)


def vgg16(batch: int = 32, side: int = 224) -> Made:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return Classifier(nn.Sequential(*layers, nn.Dropout(0.5)), channels), _images(batch, side)


class Inverted(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expand: int) -> None:
        super().__init__()
        middle = before * expand
        head = [_unit(before, middle, 1, act="relu6")] if expand != 1 else []
        wide = _unit(middle, middle, 3, stride, middle, act="relu6")
        self.body = nn.Sequential(*head, wide, _unit(middle, after, 1, act="none"))
        self.skips = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skips else self.body(x)


def mobilenet_v2(batch: int = 64, side: int = 224) -> Made:
    layers: list[nn.Module] = [_unit(3, 32, 3, 2, act="relu6")]
    before = 32
    stages = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    for expand, after, count, stride in stages:
        for index in range(count):
            layers.append(Inverted(before, after, 1 if index else stride, expand))
            before = after
    layers.append(_unit(before, 1280, 1, act="relu6"))
    return Classifier(nn.Sequential(*layers), 1280), _images(batch, side)


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()

        def twice(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(_unit(before, after), _unit(after, after))

        widths = [width << level for level in range(depth + 1)]
        steps = list(pairwise(widths))
        self.first = twice(3, width)
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), twice(*s)) for s in steps)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(steps))
        self.mix = nn.ModuleList(twice(b, a) for a, b in reversed(steps))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, image: Tensor, classes: Tensor) -> Tensor:
        skips = [self.first(image)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, mix in zip(self.up, self.mix):
            x = mix(torch.cat([skips.pop(), up(x)], 1))
        return F.cross_entropy(self.last(x), classes)


def unet(batch: int = 8, side: int = 256) -> Made:
    classes = torch.randint(0, 2, (batch, side, side))
    return UNet(64, 4), (torch.randn(batch, 3, side, side), classes)


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.mix(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    def __init__(
        self, words: int, length: int, width: int, layers: int, heads: int, drop: float
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, drop) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt(
    batch: int = 16, length: int = 512, words: int = 8192, width: int = 512, layers: int = 6, heads: int = 8, drop: float = 0.1,
) -> Made:  # fmt: skip
    return GPT(words, length, width, layers, heads, drop), _tokens(words, batch, length)


def gpt2_small(batch: int = 8) -> Made:
    return gpt(batch, 1024, 50257, 768, 12, 12)


class Attention(nn.Module):
    """Scores by a small network, as in Bahdanau's: the O-shaped region of the Echo paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, keys: Tensor, memory: Tensor, state: Tensor) -> Tensor:
        scores = self.score(torch.tanh(keys + self.query(state)[:, None])).squeeze(2)
        return torch.bmm(scores.softmax(1)[:, None], memory).squeeze(1)


class Translator(nn.Module):
    """Two LSTM layers encode, one LSTM cell with attention decodes."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, 2, batch_first=True)
        self.cell, self.attention = nn.LSTMCell(2 * width, width), Attention(width)
        self.key, self.out = nn.Linear(width, width, bias=False), nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (h, c) = self.encoder(self.source(source))
        h, c, keys, context = h[-1], c[-1], self.key(memory), memory.mean(1)
        said, outputs = self.target(target), []
        for t in range(target.shape[1] - 1):
            h, c = self.cell(torch.cat([said[:, t], context], 1), (h, c))
            context = self.attention(keys, memory, h)
            outputs.append(torch.cat([h, context], 1))
        logits = self.out(torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def nmt(batch: int = 64, length: int = 50, words: int = 10000, width: int = 512) -> Made:
    return Translator(words, width), _tokens(words, batch, length)


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
    return UnrolledTranslator(words, width), _tokens(words, batch, length)


class WordModel(nn.Module):
    def __init__(self, words: int, width: int, drop: float) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(drop)
        self.rnn, self.out = nn.LSTM(width, width, 2, dropout=drop), nn.Linear(width, words)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        h, _ = self.rnn(self.drop(self.words(tokens)))
        return F.cross_entropy(self.out(self.drop(h)).flatten(0, 1), targets.flatten())


def word_lm(batch: int = 80, length: int = 35, words: int = 10000, width: int = 650) -> Made:
    return WordModel(words, width, 0.5), _tokens(words, length, batch)


MAKERS: dict[str, Callable[..., Made]] = {
    maker.__name__: maker
    for maker in (
        resnet50, googlenet, vgg16, mobilenet_v2, unet, gpt, nmt, word_lm, gpt2_small, nmt_unrolled,
    )
}  # fmt: skip
