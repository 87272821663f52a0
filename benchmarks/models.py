"""The models the benchmarks train: small enough for two CPU cores, shaped like the real ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS", "make"]

Made = tuple[nn.Module, tuple[Tensor, ...]]


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


class LanguageModel(nn.Module):
    """A small GPT with tied embeddings; returns its loss."""

    def __init__(self, words: int, length: int, width: int, layers: int, drop: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 4, drop) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Translator(nn.Module):
    """LSTM encoder, LSTM-cell decoder with additive attention, one step at a time; returns its loss."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.LSTM(width, width, 2, batch_first=True)
        self.cell = nn.LSTMCell(2 * width, width)
        self.key, self.query = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.score, self.out = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (h, c) = self.encoder(self.source(source))
        h, c, keys, context = h[-1], c[-1], self.key(memory), memory.mean(1)
        said = self.target(target)
        outputs = []
        for t in range(target.shape[1] - 1):
            h, c = self.cell(torch.cat([said[:, t], context], 1), (h, c))
            scores = self.score(torch.tanh(keys + self.query(h)[:, None])).squeeze(2)
            context = torch.bmm(scores.softmax(1)[:, None], memory).squeeze(1)
            outputs.append(torch.cat([h, context], 1))
        logits = self.out(torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def gpt(batch: int = 12, length: int = 256, words: int = 4096, width: int = 256) -> Made:
    shape = (batch, length)
    batch_ = (torch.randint(words, shape), torch.randint(words, shape))
    return LanguageModel(words, length, width, 6, 0.1), batch_


def nmt(batch: int = 96, length: int = 25, words: int = 1500, width: int = 256) -> Made:
    shape = (batch, length)
    return Translator(words, width), (torch.randint(words, shape), torch.randint(words, shape))


MODELS: dict[str, Callable[..., Made]] = {"gpt": gpt, "nmt": nmt}


def make(name: str, **sizes: int) -> Made:
    torch.manual_seed(0)
    return MODELS[name](**sizes)
