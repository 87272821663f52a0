"""Is `lowtide.nn.LSTM` faster than `torch.nn.LSTM`, and how much less does it keep? Steps of single modules, timed in turn.

Beside them runs what no implementation can do without: the six matrix products of each layer (two forward, four backward), each over all
steps at once, by torch. Who is as fast as that has nothing left to win. They run once with the batch outermost (X W^T), as torch does it, and once with
the batch innermost (W X^T): the choice of layout that the paper EcoRNN is about. Which way our own kernel was tuned to is said as well.

On request also torch's layer as Inductor compiles it, unrolled over its steps: that takes a second or two of compilation per step and layer.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lowtide.bench.race import interleave
from lowtide.capture.rnn import rnn_config
from lowtide.measure.peak import record
from lowtide.nn import LSTM, autotune

__all__ = ["SHAPES", "Layers", "Shape", "race_layers"]

_GATES, _STATES, _TORCH, _UNROLLED = "gates", "states", "torch", "unrolled"
_PRODUCTS, _TURNED = "products", "turned products"
_SPEEDS = (_GATES, _STATES, _UNROLLED, _PRODUCTS, _TURNED)


@dataclass(frozen=True)
class Shape:
    layers: int = 1
    length: int = 50
    batch: int = 64
    width: int = 512


SHAPES = (
    *(Shape(batch=n) for n in (8, 16, 32, 64, 128)),
    *(Shape(width=n) for n in (128, 256, 1024)),
    *(Shape(layers=n) for n in (2, 4)),
    *(Shape(length=n) for n in (25, 100)),
)
"""Around one in the middle, each size by itself."""


@dataclass(frozen=True)
class Entry:
    shape: Shape
    milliseconds: dict[str, float]
    kept: dict[str, int]
    """Bytes that are left after forward, inputs and parameters aside."""
    way: str = ""
    """That the tuner chose for a layer of this shape."""
    compiling: float | None = None
    """Seconds until the unrolled layer's first step was done."""

    def speed(self, name: str) -> float:
        """As a multiple of torch's."""
        return self.milliseconds[_TORCH] / self.milliseconds[name]

    def said(self, name: str) -> str:
        return f"{self.speed(name):.2f}x" if name in self.milliseconds else ""


@dataclass(frozen=True)
class Layers:
    entries: tuple[Entry, ...]

    def text(self) -> str:
        lines = [
            "| layers | length | batch | width | torch | keeping gates | keeping states | Inductor, unrolled | products alone, batch outermost | batch innermost | kept by torch | gates | states | tuned to |",
            "|---" * 14 + "|",
        ]
        for e in self.entries:
            s = e.shape
            speeds = " | ".join(e.said(n) for n in _SPEEDS)
            shares = " | ".join(f"{e.kept[n] / e.kept[_TORCH]:.2f}x" for n in (_GATES, _STATES))
            lines.append(
                f"| {s.layers} | {s.length} | {s.batch} | {s.width} | {e.milliseconds[_TORCH]:.1f} ms | {speeds} | "
                f"{e.kept[_TORCH] / 2**20:.1f} MiB | {shares} | {e.way} |"
            )
        means = (
            f"{name} {statistics.geometric_mean(found):.2f}x"
            for name in _SPEEDS
            if (found := [e.speed(name) for e in self.entries if name in e.milliseconds])
        )
        lines += ["", f"Speeds are multiples of torch's; geometric means: {', '.join(means)}."]
        waits = [
            e.compiling / (e.shape.layers * e.shape.length) for e in self.entries if e.compiling
        ]
        if waits:
            lines += [
                f"Until an unrolled layer's first step was done it took {statistics.median(waits):.1f} s per step and layer."
            ]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        return {"entries": [asdict(e) for e in self.entries]}

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lstm.json").write_text(json.dumps(self.data(), indent=1))
        page = folder / "lstm.md"
        page.write_text(self.text() + "\n")
        return page


def race_layers(
    shapes: Sequence[Shape] = SHAPES,
    *,
    rounds: int = 7,
    unrolled: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Layers:
    """Layers of at most so many steps in all are compiled `unrolled`, too. Ctrl-C ends it with the shapes done so far."""
    found: list[Entry] = []
    try:
        for shape in shapes:
            found.append(_one(shape, rounds, shape.layers * shape.length <= unrolled))
            tell(f"{shape}: {found[-1].speed(_GATES):.2f}x")
    except KeyboardInterrupt:
        tell("stopped: the shapes done so far are kept")
    return Layers(tuple(found))


def _one(shape: Shape, rounds: int, unrolled: bool) -> Entry:
    torch.manual_seed(0)
    sizes = (shape.width, shape.width, shape.layers)
    modules: dict[str, nn.LSTM] = {
        _TORCH: nn.LSTM(*sizes),
        _GATES: LSTM(*sizes),
        _STATES: LSTM(*sizes, keep="states"),
    }
    for module in modules.values():
        module.load_state_dict(modules[_TORCH].state_dict())
    x = torch.randn(shape.length, shape.batch, shape.width)
    steps: dict[str, Callable[[], None]] = {n: _step(m, x) for n, m in modules.items()}
    steps |= {_PRODUCTS: _products(shape, torch.mm), _TURNED: _products(shape, _turned)}
    compiling = None
    if unrolled:
        steps[_UNROLLED], compiling = _compiled(modules[_TORCH], x)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _, name, taken in interleave(steps, rounds):
        times[name].append(taken)
    milliseconds = {name: 1e3 * statistics.median(t) for name, t in times.items()}
    kept = {name: _kept(m, x) for name, m in modules.items()}
    return Entry(shape, milliseconds, kept, autotune.choose(x, shape.width), compiling)


def _step(module: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        module.zero_grad()
        module(x.clone().requires_grad_())[0].sum().backward()

    return step


def _compiled(module: nn.LSTM, x: torch.Tensor) -> tuple[Callable[[], None], float]:
    """Its step, and the seconds until the first one was done."""
    twin = nn.LSTM(module.input_size, module.hidden_size, module.num_layers)
    twin.load_state_dict(module.state_dict())
    torch._dynamo.reset()
    started = time.perf_counter()
    with rnn_config():
        twin.compile(backend="inductor")
        step = _step(twin, x)
        step()
    return step, time.perf_counter() - started


def _products(
    shape: Shape, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[], None]:
    rows = torch.randn(shape.length * shape.batch, shape.width)
    wide, weights = rows.repeat(1, 4), torch.randn(4 * shape.width, shape.width)

    def step() -> None:
        for _ in range(2 * shape.layers):
            product(rows, weights.t())
            product(wide, weights)
            product(wide.t(), rows)

    return step


def _turned(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.mm(other.t(), one.t())


def _kept(module: nn.LSTM, x: torch.Tensor) -> int:
    module(x)  # what is made once
    held: list[Any] = []
    return record(lambda: held.append(module(x)), x.device).left
