"""Which models are the benchmarks about? Eight networks of the Echo, EcoRNN and MONeT papers, sized for steps on two CPU cores.

Plain PyTorch. A model returns its loss, and says which of its modules a careful user would put into `torch.utils.checkpoint`, one
by one: pools close a block, so that the smaller tensor is what is kept between two. `bench/planner_models.py` has them at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.errors import OptionError, did_you_mean

__all__ = ["MODELS", "Attention", "Made", "Trained", "make", "names_of", "random_tokens"]


class Trained(nn.Module):
    def blocks(self) -> list[nn.Module]:
        """What to checkpoint by hand."""
        raise NotImplementedError


Made = tuple[Trained, tuple[Tensor, ...]]
"""A model and one batch."""


class Classifier(Trained):
    """Blocks in a row, a mean over places, a linear layer, cross entropy."""

    def __init__(self, blocks: list[nn.Module], features: int, drop: float = 0.0) -> None:
        super().__init__()
        self.body, self.drop = nn.Sequential(*blocks), nn.Dropout(drop)
        self.head = nn.Linear(features, _CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.drop(self.body(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)

    def blocks(self) -> list[nn.Module]:
        return list(self.body)


_CLASSES = 1000


def _images(batch: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(_CLASSES, (batch,))


def _conv(
    inner: int,
    outer: int,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    act: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm and, unless told otherwise, an activation in place."""
    conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), *([act(inplace=True)] if act else []))


class Bottleneck(nn.Module):
    def __init__(self, inner: int, middle: int, stride: int) -> None:
        super().__init__()
        outer = 4 * middle
        self.main = nn.Sequential(
            _conv(inner, middle, 1),
            _conv(middle, middle, 3, stride),
            _conv(middle, outer, 1, act=None),
        )
        same = stride == 1 and inner == outer
        self.side = nn.Identity() if same else _conv(inner, outer, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.side(x), inplace=True)


def resnet50(batch: int = 24, size: int = 128, width: int = 32) -> Made:
    blocks: list[nn.Module] = [nn.Sequential(_conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))]
    inner = width
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            blocks.append(Bottleneck(inner, width << stage, 2 if stage and not i else 1))
            inner = 4 * (width << stage)
    return Classifier(blocks, inner), _images(batch, size)


class Inception(nn.Module):
    def __init__(self, inner: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:  # fmt: skip
        super().__init__()
        self.one = _conv(inner, one, 1)
        self.three = nn.Sequential(_conv(inner, three[0], 1), _conv(*three))
        self.five = nn.Sequential(_conv(inner, five[0], 1), _conv(*five))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(inner, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


def googlenet(batch: int = 24, size: int = 128) -> Made:
    def halved(*block: nn.Module) -> nn.Module:
        return nn.Sequential(*block, nn.MaxPool2d(3, 2, 1))

    blocks = [
        halved(_conv(3, 64, 7, 2)),
        halved(_conv(64, 64, 1), _conv(64, 192)),
        Inception(192, 64, (96, 128), (16, 32), 32),
        halved(Inception(256, 128, (128, 192), (32, 96), 64)),
        Inception(480, 192, (96, 208), (16, 48), 64),
        Inception(512, 160, (112, 224), (24, 64), 64),
        Inception(512, 128, (128, 256), (24, 64), 64),
        Inception(512, 112, (144, 288), (32, 64), 64),
        halved(Inception(528, 256, (160, 320), (32, 128), 128)),
        Inception(832, 256, (160, 320), (32, 128), 128),
        Inception(832, 384, (192, 384), (48, 128), 128),
    ]
    return Classifier(blocks, 1024, drop=0.2), _images(batch, size)


def vgg16(batch: int = 12, size: int = 128, width: int = 32) -> Made:
    blocks: list[nn.Module] = []
    inner = 3
    for outer, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        layers: list[nn.Module] = []
        for _ in range(count):
            layers += [nn.Conv2d(inner, outer * width, 3, 1, 1), nn.ReLU(inplace=True)]
            inner = outer * width
        blocks.append(nn.Sequential(*layers, *([nn.MaxPool2d(2)] if len(blocks) < 4 else [])))
    return Classifier(blocks, inner, drop=0.5), _images(batch, size)


class Inverted(nn.Module):
    """Widen, convolve each channel by itself, narrow."""

    def __init__(self, inner: int, outer: int, stride: int, widen: int) -> None:
        super().__init__()
        middle = inner * widen
        self.body = nn.Sequential(
            *([_conv(inner, middle, 1, act=nn.ReLU6)] if widen > 1 else []),
            _conv(middle, middle, 3, stride, groups=middle, act=nn.ReLU6),
            _conv(middle, outer, 1, act=None),
        )
        self.skips = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skips else self.body(x)


def mobilenet_v2(batch: int = 16, size: int = 128) -> Made:
    blocks: list[nn.Module] = [_conv(3, 32, 3, 2, act=nn.ReLU6)]
    inner = 32
    for widen, outer, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for i in range(count):
            blocks.append(Inverted(inner, outer, 1 if i else stride, widen))
            inner = outer
    blocks.append(_conv(inner, 1280, 1, act=nn.ReLU6))
    return Classifier(blocks, 1280), _images(batch, size)


class UNet(Trained):
    """Two classes for every pixel."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << k for k in range(depth + 1)]
        self.first = _twice(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), _twice(a, b)) for a, b in pairwise(widths)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:depth])
        )
        self.mix = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths[:depth]))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, mix in zip(self.up, self.mix):
            x = mix(torch.cat([skips.pop(), up(x)], 1))
        return F.cross_entropy(self.last(x), labels)

    def blocks(self) -> list[nn.Module]:
        return [self.first, *self.down, *self.mix]


def _twice(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(_conv(inner, outer), _conv(outer, outer))


def unet(batch: int = 4, size: int = 192, width: int = 16, depth: int = 4) -> Made:
    labels = torch.randint(2, (batch, size, size))
    return UNet(width, depth), (torch.randn(batch, 3, size, size), labels)


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(drop)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.mix(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class GPT(Trained):
    """Embeddings are tied to the last layer."""

    def __init__(
        self, words: int, length: int, width: int, layers: int, heads: int, drop: float
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(TransformerBlock(width, heads, drop) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.layers(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        logits = F.linear(self.norm(x), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def gpt(
    batch: int = 12, length: int = 256, words: int = 4096, width: int = 256, layers: int = 6, heads: int = 4, drop: float = 0.1
) -> Made:  # fmt: skip
    return GPT(words, length, width, layers, heads, drop), random_tokens(words, batch, length)


def random_tokens(words: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randint(words, shape), torch.randint(words, shape)


class Attention(nn.Module):
    """Scores by a small network, as in Bahdanau's: the O-shaped region of the Echo paper."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, keys: Tensor, memory: Tensor, state: Tensor) -> Tensor:
        scores = self.score(torch.tanh(keys + self.query(state)[:, None])).squeeze(2)
        return torch.bmm(scores.softmax(1)[:, None], memory).squeeze(1)


class AttendingCell(nn.Module):
    """One word of the decoder: an LSTM cell, then attention over what the encoder remembers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.attention = nn.LSTMCell(2 * width, width), Attention(width)

    def forward(
        self, word: Tensor, context: Tensor, h: Tensor, c: Tensor, keys: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, c = self.cell(torch.cat([word, context], 1), (h, c))
        return self.attention(keys, memory, h), h, c


class Translator(Trained):
    """An LSTM encoder and an attending decoder, one word at a time."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, 2, batch_first=True)
        self.key, self.decoder = nn.Linear(width, width, bias=False), AttendingCell(width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (last_h, last_c) = self.encoder(self.source(source))
        h, c, context = last_h[-1], last_c[-1], memory.mean(1)
        keys, said = self.key(memory), self.target(target)
        outputs = []
        for t in range(target.shape[1] - 1):
            context, h, c = self.decoder(said[:, t], context, h, c, keys, memory)
            outputs.append(torch.cat([h, context], 1))
        logits = self.out(torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())

    def blocks(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]


def nmt(batch: int = 96, length: int = 25, words: int = 1500, width: int = 256) -> Made:
    return Translator(words, width), random_tokens(words, batch, length)


class WordModel(Trained):
    """Two LSTM layers with dropout."""

    def __init__(self, words: int, width: int, drop: float) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(drop)
        self.rnn = nn.LSTM(width, width, 2, dropout=drop)
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        h, _ = self.rnn(self.drop(self.words(tokens)))
        return F.cross_entropy(self.out(self.drop(h)).flatten(0, 1), targets.flatten())

    def blocks(self) -> list[nn.Module]:
        return [self.rnn]


def word_lm(
    batch: int = 80, length: int = 35, words: int = 3000, width: int = 300, drop: float = 0.5
) -> Made:
    return WordModel(words, width, drop), random_tokens(words, length, batch)


MODELS: dict[str, Callable[..., Made]] = {
    maker.__name__: maker
    for maker in (resnet50, googlenet, vgg16, mobilenet_v2, unet, gpt, nmt, word_lm)
}


def names_of(models: Sequence[str]) -> list[str]:
    """The models asked for, checked; all, if none was."""
    known = list(MODELS)
    for name in models:
        if name not in MODELS:
            raise OptionError(
                f"no model called {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
    return list(dict.fromkeys(models)) or known


def make(name: str, **sizes: float) -> Made:
    torch.manual_seed(0)
    return MODELS[name](**sizes)
