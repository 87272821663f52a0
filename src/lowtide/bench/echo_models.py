"""The models of the Echo and EcoRNN papers, with batches of made-up sentences: translation, language, speech.

    tbd          English to Vietnamese: 2 layers each, the encoder's first one in both directions, width 512, MLP attention
    groundhog    1 layer each, width 1000, embeddings of 500, attention of 512 with layer norm
    lm_650       word model, 2 layers of 650, dropout, 35 words
    lm_200       the same with 200
    deepspeech   convolutions over a spectrogram, then recurrent layers in both directions, LSTM and GRU in turn

Sentences have lengths as in IWSLT15 (median about 18 words, a long tail), in buckets of 10 up to 100; a batch is of the median's bucket.
`scale` multiplies all widths and vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lowtide.errors import OptionError, did_you_mean

__all__ = ["Workload", "bucket", "names_of", "workload"]


@dataclass(frozen=True)
class Workload:
    name: str
    batch: int
    """The authors'."""
    model: nn.Module
    make_batch: Callable[[int], tuple[Tensor, ...]]


def bucket(quantile: float = 0.5, width: int = 10, most: int = 100) -> int:
    """The bucket of sentences at this place among all of them, as the length they are padded to."""
    middle = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(quantile)).item()
    words = 18.0 * 2.0 ** (0.8 * middle)
    return min(most, width * -(-int(words) // width))


class Attention(nn.Module):
    """Scores by a small network; with layer norm if asked for."""

    def __init__(self, queries: int, width: int, norm: bool) -> None:
        super().__init__()
        self.query, self.score = nn.Linear(queries, width, bias=False), nn.Linear(width, 1, bias=False)  # fmt: skip
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, keys: Tensor, memory: Tensor, state: Tensor) -> Tensor:
        joined = self.norm(keys + self.query(state)[:, None])
        scores = self.score(torch.tanh(joined)).squeeze(2)
        return torch.bmm(scores.softmax(1)[:, None], memory).squeeze(1)


class Encoder(nn.Module):
    """The first layer in both directions, of half the width each."""

    def __init__(self, embed: int, width: int, layers: int) -> None:
        super().__init__()
        self.both = nn.LSTM(embed, width // 2, bidirectional=True, batch_first=True)
        self.rest = nn.LSTM(width, width, layers - 1, batch_first=True) if layers > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.both(x)[0]
        return y if self.rest is None else self.rest(y)[0]


class Translator(nn.Module):
    def __init__(
        self, words: tuple[int, int], embed: int, width: int, attention: int, layers: int, norm: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.source_embedding, self.target_embedding = (nn.Embedding(n, embed) for n in words)
        self.encoder = Encoder(embed, width, layers)
        self.key = nn.Linear(width, attention, bias=False)
        self.attention = Attention(width, attention, norm)
        sizes = [embed + width, *[width] * (layers - 1)]
        self.decoder = nn.ModuleList(nn.LSTMCell(n, width) for n in sizes)
        self.hidden, self.output = nn.Linear(2 * width, embed), nn.Linear(embed, words[1])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.source_embedding(source))
        keys, said = self.key(memory), self.target_embedding(target)
        start = memory.mean(1)
        context, states = start, [(start, start) for _ in self.decoder]
        outputs = []
        for t in range(target.shape[1] - 1):
            x = torch.cat([said[:, t], context], 1)
            for number, cell in enumerate(self.decoder):
                states[number] = cell(x, states[number])
                x = states[number][0]
            context = self.attention(keys, memory, x)
            outputs.append(torch.tanh(self.hidden(torch.cat([x, context], 1))))
        logits = self.output(torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


class WordModel(nn.Module):
    def __init__(self, words: int, width: int, drop: float) -> None:
        super().__init__()
        self.embedding, self.drop = nn.Embedding(words, width), nn.Dropout(drop)
        self.rnn, self.output = nn.LSTM(width, width, 2, dropout=drop), nn.Linear(width, words)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        h, _ = self.rnn(self.drop(self.embedding(tokens)))
        return F.cross_entropy(self.output(self.drop(h)).flatten(0, 1), targets.flatten())


class Speech(nn.Module):
    """A letter for every other frame, in the place of CTC's alignment: what is kept for it is small in both."""

    def __init__(self, bands: int, width: int, layers: int, letters: int = 29) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        sizes = [32 * -(-bands // 4), *[2 * width] * (layers - 1)]
        self.rnn = nn.ModuleList(
            (nn.GRU if number % 2 else nn.LSTM)(size, width, bidirectional=True)
            for number, size in enumerate(sizes)
        )
        self.output = nn.Linear(2 * width, letters)

    def forward(self, spectrogram: Tensor, letters: Tensor) -> Tensor:
        x = self.convolutions(spectrogram[:, None]).flatten(1, 2).permute(2, 0, 1)
        for layer in self.rnn:
            x = layer(x)[0]
        return F.cross_entropy(self.output(x).flatten(0, 1), letters[: len(x)].flatten())


def _translation(
    name: str, batch: int, scale: float, length: int, *, embed: int, width: int, layers: int, norm: bool
) -> Workload:  # fmt: skip
    words = (_scaled(17192, scale), _scaled(7710, scale))
    sizes = [_scaled(n, scale) for n in (embed, width, 512)]
    model = Translator(words, sizes[0], sizes[1], sizes[2], layers, norm)

    def make_batch(n: int) -> tuple[Tensor, ...]:
        return tuple(torch.randint(count, (n, length)) for count in words)

    return Workload(name, batch, model, make_batch)


def _language(name: str, batch: int, scale: float, width: int, drop: float) -> Workload:
    words = _scaled(33278, scale)

    def make_batch(n: int) -> tuple[Tensor, ...]:
        return torch.randint(words, (35, n)), torch.randint(words, (35, n))

    return Workload(name, batch, WordModel(words, _scaled(width, scale), drop), make_batch)


def _speech(batch: int, scale: float) -> Workload:
    bands, frames = _scaled(160, scale), 100

    def make_batch(n: int) -> tuple[Tensor, ...]:
        return torch.randn(n, bands, frames), torch.randint(29, (frames // 2, n))

    return Workload("deepspeech", batch, Speech(bands, _scaled(800, scale), 5), make_batch)


def _scaled(size: int, scale: float) -> int:
    """To a multiple of eight: halves of it are whole, too."""
    return max(8, round(size * scale / 8) * 8)


_MAKERS: dict[str, Callable[[float], Workload]] = {
    "tbd": lambda s: _translation("tbd", 128, s, bucket(), embed=512, width=512, layers=2, norm=False),
    "groundhog": lambda s: _translation("groundhog", 80, s, bucket(), embed=500, width=1000, layers=1, norm=True),
    "lm_650": lambda s: _language("lm_650", 32, s, 650, 0.5),
    "lm_200": lambda s: _language("lm_200", 32, s, 200, 0.2),
    "deepspeech": lambda s: _speech(16, s),
}  # fmt: skip


def names_of(models: list[str]) -> list[str]:
    """The models asked for, checked; all, if none was."""
    known = list(_MAKERS)
    for name in models:
        if name not in known:
            raise OptionError(
                f"no model called {name!r}{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
    return list(dict.fromkeys(models)) or known


def workload(name: str, scale: float = 1.0) -> Workload:
    torch.manual_seed(0)
    return _MAKERS[name](scale)
