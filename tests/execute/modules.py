"""Random small modules for the property tests: what people write into a forward, one small block each.

A module is described by a tuple of block names, which hypothesis draws and shrinks; `build` makes it. Images are
[3, 8, 8, 8] with 8 channels throughout, sequences [3, 6, 8]. Every block keeps the shape it gets (pools go together with
an upsampling), so that any blocks fit together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

__all__ = ["IMAGE_BLOCKS", "SEQUENCE_BLOCKS", "build", "image_names", "sequence_names"]

WIDTH, CLASSES = 8, 5


class Call(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Branches(nn.Module):
    """Two branches, concatenated along channels and mixed back to the width."""

    def __init__(self, a: nn.Module, b: nn.Module, mix: nn.Module, dim: int) -> None:
        super().__init__()
        self.a, self.b, self.mix, self.dim = a, b, mix, dim

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.cat([self.a(x), self.b(x)], self.dim))


class Frozen(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class InPlace(nn.Module):
    """In-place arithmetic on a value of its own, also through a slice."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.add_(0.5).mul_(x)
        y[:, 0] = 0.25
        return y.sigmoid_()


class InPlaceOnTheWay(nn.Module):
    """Overwrites its input, as ReLU(inplace=True) does, after a view of it was taken."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1
        seen = x.transpose(1, 2)
        x.clamp_(-1, 1)
        return x + seen.transpose(1, 2) * 0.5


class ReadThenMutate(nn.Module):
    """The old value is used, then overwritten: recomputing later must not read the new one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(x + self.average) * self.average.clone()
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.mean())
        return y * x


class MutateThenRead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sigmoid(x / self.calls)


class Replaced(nn.Module):
    """A buffer that is assigned anew, not mutated."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale.mean()
        self.scale = self.scale * 0.75
        return torch.tanh(y)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * torch.randn_like(x)) + torch.rand(x.shape[-1])


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out, self.dropout = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            dropout,
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class WrittenOutAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", torch.ones(6, 6).tril().bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        weights = scores.masked_fill(~self.mask, float("-inf")).softmax(-1)
        return F.dropout(weights, 0.2, self.training) @ x


Maker = Callable[[nn.Module], nn.Module]
"""Makes a block; it gets a layer that the whole model shares."""


def _conv(*, groups: int = 1, size: int = 3, bias: bool = True) -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, groups=groups, bias=bias)


def _up(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(8, 8), mode="nearest")


ANY_BLOCKS: dict[str, Maker] = {
    "relu": lambda _: nn.ReLU(),
    "relu_": lambda _: Residual(Call(lambda x: x * 1.5), nn.ReLU(inplace=True)),
    "relu6": lambda _: nn.ReLU6(),
    "hardtanh": lambda _: nn.Hardtanh(),
    "leaky_relu": lambda _: nn.LeakyReLU(0.1),
    "silu": lambda _: nn.SiLU(),
    "gelu": lambda _: nn.GELU(),
    "gelu_tanh": lambda _: nn.GELU(approximate="tanh"),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "dropout": lambda _: nn.Dropout(0.3),
    "dropout_": lambda _: nn.Sequential(Call(lambda x: x * 1.1), nn.Dropout(0.3, inplace=True)),
    "noise": lambda _: Noise(),
    "in_place": lambda _: InPlace(),
    "in_place_view": lambda _: InPlaceOnTheWay(),
    "read_then_mutate": lambda _: ReadThenMutate(),
    "mutate_then_read": lambda _: MutateThenRead(),
    "replaced_buffer": lambda _: Replaced(),
    "tied": lambda shared: shared,
    "tied_residual": lambda shared: Residual(shared, nn.Tanh()),
    "square": lambda _: Call(lambda x: x * x),
    "norm": lambda _: Call(lambda x: F.normalize(x, dim=1)),
    "softmax": lambda _: Call(lambda x: x.softmax(-1)),
    "where": lambda _: Call(lambda x: torch.where(x > 0, x.exp().clamp(max=3), x)),
    "detached": lambda _: Call(lambda x: x + x.detach().abs()),
    "flip": lambda _: Call(lambda x: x.flip(-1)),
    "slices": lambda _: Call(lambda x: torch.cat([x[..., ::2], x[..., 1::2].neg()], -1)),
    "transpose": lambda _: Call(lambda x: x.transpose(1, -1).tanh().transpose(1, -1)),
    "reshape": lambda _: Call(lambda x: x.reshape(-1, 4).cumsum(0).reshape(x.shape) * 0.1),
    "std": lambda _: Call(lambda x: x / (x.std(dim=(1, 2), keepdim=True) + 1)),
    "topk": lambda _: Call(lambda x: x * (x >= x.topk(3, -1).values[..., -1:])),
}  # fmt: skip

IMAGE_BLOCKS: dict[str, Maker] = {
    **ANY_BLOCKS,
    "conv": lambda _: _conv(),
    "conv_no_bias": lambda _: _conv(bias=False),
    "conv1": lambda _: _conv(size=1),
    "depthwise": lambda _: _conv(groups=WIDTH),
    "frozen": lambda _: Frozen(_conv()),
    "conv_bn_relu": lambda _: nn.Sequential(_conv(bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)),
    "conv_bn_relu6": lambda _: nn.Sequential(_conv(bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU6()),
    "residual": lambda _: Residual(_conv(), nn.BatchNorm2d(WIDTH), nn.ReLU(), _conv(), nn.Dropout(0.2)),
    "batch_norm": lambda _: nn.BatchNorm2d(WIDTH),
    "batch_norm_no_statistics": lambda _: nn.BatchNorm2d(WIDTH, track_running_stats=False),
    "batch_norm_frozen": lambda _: nn.BatchNorm2d(WIDTH).eval(),
    "batch_norm_not_affine": lambda _: nn.BatchNorm2d(WIDTH, affine=False),
    "instance_norm": lambda _: nn.InstanceNorm2d(WIDTH, affine=True),
    "group_norm": lambda _: nn.GroupNorm(2, WIDTH),
    "layer_norm": lambda _: nn.LayerNorm([WIDTH, 8, 8]),
    "dropout2d": lambda _: nn.Dropout2d(0.3),
    "max_pool": lambda _: nn.Sequential(nn.MaxPool2d(2), Call(_up)),
    "max_pool_overlapping": lambda _: nn.MaxPool2d(3, stride=1, padding=1),
    "avg_pool": lambda _: nn.Sequential(nn.AvgPool2d(2), Call(_up)),
    "adaptive_pool": lambda _: Residual(nn.AdaptiveAvgPool2d(1), _conv(size=1), nn.Sigmoid()),
    "bilinear": lambda _: nn.Sequential(nn.MaxPool2d(2), nn.Upsample(size=(8, 8), mode="bilinear")),
    "branches": lambda _: Branches(_conv(size=1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(2 * WIDTH, WIDTH, 1), 1),
    "shuffle": lambda _: Call(lambda x: x.view(3, 2, 4, 8, 8).transpose(1, 2).flatten(1, 2)),
    "channels_last": lambda _: Call(lambda x: x.contiguous(memory_format=torch.channels_last)),
    "prelu": lambda _: nn.PReLU(WIDTH),
}  # fmt: skip

SEQUENCE_BLOCKS: dict[str, Maker] = {
    **ANY_BLOCKS,
    "linear": lambda _: nn.Linear(WIDTH, WIDTH),
    "frozen": lambda _: Frozen(nn.Linear(WIDTH, WIDTH)),
    "layer_norm": lambda _: nn.LayerNorm(WIDTH),
    "rms_norm": lambda _: nn.RMSNorm(WIDTH),
    "mlp": lambda _: Residual(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.Dropout(0.2)),
    "glu": lambda _: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),
    "attention": lambda _: Residual(Attention(0.0)),
    "attention_dropout": lambda _: Residual(Attention(0.25)),
    "written_out_attention": lambda _: WrittenOutAttention(),
    "encoder_layer": lambda _: nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.1, batch_first=True),
    "branches": lambda _: Branches(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(12, WIDTH), -1),
    "conv1d": lambda _: Call2(nn.Conv1d(WIDTH, WIDTH, 3, padding=1)),
    "mean_max": lambda _: Call(lambda x: x + x.mean(1, keepdim=True) * x.amax(1, keepdim=True)),
    "einsum": lambda _: Call(lambda x: torch.einsum("btd,bsd,bsk->btk", x, x, x) * 0.1),
    "gather": lambda _: Call(lambda x: x.gather(1, x.argsort(1))),
}  # fmt: skip


class Call2(nn.Module):
    """A layer over [batch, width, time]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mT).mT


class ImageModel(nn.Module):
    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.stem, self.shared = nn.Conv2d(3, WIDTH, 3, padding=1), _conv()
        self.blocks = nn.ModuleList(IMAGE_BLOCKS[n](self.shared) for n in names)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class SequenceModel(nn.Module):
    """The head's weight is the embedding's."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.embedding, self.shared = (
            nn.Embedding(11, WIDTH, padding_idx=0),
            nn.Linear(WIDTH, WIDTH),
        )
        self.position = nn.Parameter(torch.randn(6, WIDTH))
        self.blocks = nn.ModuleList(SEQUENCE_BLOCKS[n](self.shared) for n in names)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.embedding(x) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


def build(family: str, names: tuple[str, ...]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model and a batch, always the same for the same names."""
    torch.manual_seed(0)
    if family == "image":
        return ImageModel(names), (torch.randn(3, 3, 8, 8), torch.randint(CLASSES, (3,)))
    return SequenceModel(names), (torch.randint(11, (3, 6)), torch.randint(11, (3, 6)))


UNTIL_FIXED: set[str] = set()
"""The baselines fail on these (tests/execute/test_same_bits.py), and with them, sometimes, the planner."""


def image_names(most: int = 7) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(
        st.sampled_from(sorted(set(IMAGE_BLOCKS) - UNTIL_FIXED)), min_size=3, max_size=most
    ).map(tuple)


def sequence_names(most: int = 7) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(
        st.sampled_from(sorted(set(SEQUENCE_BLOCKS) - UNTIL_FIXED)), min_size=3, max_size=most
    ).map(tuple)
