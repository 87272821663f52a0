"""Which way of an LSTM layer is the fastest here? Measured once for each shape, dtype, device and number of threads, and kept on disk.

    autotune.choose(x, hidden)       the kernel to run, measured if it has not been
    autotune.explain(x, hidden)      a table of all that were measured
    with autotune.use("fused torch 1024"): ...      no measurement: this one

Candidates are the ways of our own kernel (`kernels.rnn_fused.Way`: who multiplies over all steps, how long a stretch is) and torch's own
kernel. Torch's keeps fifteen numbers per output where ours keeps four; so it is chosen only by those who say that memory does not count
(`LSTM(keep="any")`), who never run slower than with torch for it.

Lengths are taken together up to the next power of two: sequences of every length come along, and the answer hardly depends on it. Ways differ
in the last bits of their results, so one process stays with what it chose first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from lowtide.cost.store import Cost, CostStore
from lowtide.errors import OptionError
from lowtide.kernels import rnn_fused, rnn_lstm, rnn_onednn
from lowtide.kernels.rnn_fused import Way
from lowtide.measure.signature import signature
from lowtide.measure.timing import apart, environment, waited
from lowtide.rules.recurrent import stretch
from lowtide.settings import settings
from lowtide.units import format_bytes, format_seconds

__all__ = ["Tuned", "choose", "explain", "use"]

TORCH = "onednn"
_ROWS = (512, 1024, 2048)
_ROUNDS = 5
_CLEARLY = 0.97
"""Another way than the default one has to take at most so much of its time: less may be noise."""
_FOR_CELLS = 0.98
"""And one that keeps a fourth more of the others' best."""
_forced: list[str] = []
_known: dict[tuple[object, ...], Tuned] = {}


@dataclass(frozen=True)
class Tuned:
    """What was measured for one shape: the cost of one step, forward and backward, by kernel. `workspace` is what is kept."""

    shape: str
    costs: dict[str, Cost]

    @cached_property
    def _bests(self) -> tuple[str, str]:
        return self._best(False), self._best(True)

    def best(self, any_memory: bool = False) -> str:
        """Asked for in every step."""
        return self._bests[any_memory]

    def _best(self, any_memory: bool) -> str:
        allowed = {k: c.seconds for k, c in self.costs.items() if any_memory or k != TORCH}
        best = min((k for k in allowed if not _keeps_cells(k)), key=lambda k: allowed[k])
        default = str(Way())
        if allowed.get(default, math.inf) * _CLEARLY <= allowed[best]:
            best = default
        fastest = min(allowed, key=lambda k: allowed[k])
        return fastest if allowed[fastest] <= _FOR_CELLS * allowed[best] else best

    def __str__(self) -> str:
        lines = [f"LSTM layer, {self.shape}", f"{'':22s}   time of a step   kept for backward"]
        best, fastest = self.best(), self.best(any_memory=True)
        for kernel, cost in sorted(self.costs.items(), key=lambda item: item[1].seconds):
            name = "torch" if kernel == TORCH else kernel
            why = "   chosen" if kernel == best else "   chosen by keep='any'" if kernel == fastest else ""  # fmt: skip
            lines.append(
                f"{name:22s}   {format_seconds(cost.seconds):>14s}   {format_bytes(cost.workspace):>17s}{why}"
            )
        return "\n".join(lines)


def choose(x: Tensor, hidden: int, *, any_memory: bool = False) -> str:
    """For a layer over x (T, B, I), float32 on CPU."""
    if _forced:
        return _forced[-1]
    if isinstance(x, FakeTensor) or torch.compiler.is_compiling():
        return "fused"  # nothing can be timed
    return explain(x, hidden).best(any_memory)


def explain(x: Tensor, hidden: int) -> Tuned:
    """What is known of a layer over x (T, B, I), which is measured now if it has not been."""
    steps, batch, width = x.shape
    length = 1 << (steps - 1).bit_length()
    key = (length, batch, width, hidden, torch.get_num_threads())
    if key not in _known:
        _known[key] = _tuned(x, hidden, f"{length} steps of {batch} samples, {width} to {hidden}")
    return _known[key]


@contextmanager
def use(kernel: str) -> Iterator[None]:
    """This kernel for all LSTM layers that are run within: "fused", "fused panels 1024", ..., or "onednn" for torch's."""
    if kernel != TORCH and Way.named(kernel) is None:
        raise OptionError(f"{kernel!r} is not a kernel: {', '.join(map(str, _WAYS))}, {TORCH}")
    _forced.append(kernel)
    try:
        yield
    finally:
        _forced.pop()


def _keeps_cells(kernel: str) -> bool:
    way = Way.named(kernel)
    return way is not None and way.cells


_WAYS = tuple(
    Way(panels, rows, cells)
    for panels in (True, False)
    for rows in _ROWS
    for cells in (False, True)
)


def _candidates(x: Tensor) -> list[str]:
    """Ways with the same stretches are one."""
    steps, batch = x.shape[:2]
    ways = sorted(_WAYS, key=lambda way: way == Way())
    found = {(w.panels, w.cells, stretch(steps, batch, w.rows)): str(w) for w in ways}
    return [*found.values(), *([TORCH] if rnn_onednn.supports(x) else [])]


def _tuned(x: Tensor, hidden: int, shape: str) -> Tuned:
    store = CostStore(settings().cost_dir, environment(x.device))
    names = {k: f"tuned {signature(rnn_fused.forward, (k, shape), {})}" for k in _candidates(x)}
    found = {kernel: store.get(name) for kernel, name in names.items()}
    if any(cost is None for cost in found.values()):
        found = _measured(x, hidden, list(names))
        for kernel, cost in found.items():
            store.put(names[kernel], cost)
    return Tuned(shape, {k: c for k, c in found.items() if c is not None})


def _measured(x: Tensor, hidden: int, kernels: list[str]) -> dict[str, Cost | None]:
    with apart(x.device):
        tensors = _layer(x, hidden)
        steps = {k: _step(k, tensors) for k in kernels}
        kept = {k: step() for k, step in steps.items()}
        seconds = _in_turn(steps) or _on_one_thread(steps)
    return {k: Cost(seconds[k], kept[k]) for k in kernels}


def _in_turn(steps: dict[str, Callable[[], int]]) -> dict[str, float]:
    """The shortest of a few steps each; nothing if the machine is so busy that some had to wait for a processor every time."""
    times: dict[str, list[float]] = {k: [] for k in steps}
    for _ in range(_ROUNDS):
        for kernel, step in steps.items():
            lost, started = waited(), time.perf_counter()
            step()
            taken = time.perf_counter() - started
            if waited() - lost <= taken / 20:
                times[kernel].append(taken)
    return {k: min(t) for k, t in times.items()} if all(times.values()) else {}


def _on_one_thread(steps: dict[str, Callable[[], int]]) -> dict[str, float]:
    """In processor time, which no other process can lengthen by much."""
    threads = torch.get_num_threads()
    times: dict[str, list[float]] = {k: [] for k in steps}
    torch.set_num_threads(1)
    try:
        for _ in range(_ROUNDS):
            for kernel, step in steps.items():
                started = time.thread_time()
                step()
                times[kernel].append(time.thread_time() - started)
    finally:
        torch.set_num_threads(threads)
    return {k: min(t) / threads for k, t in times.items()}


def _layer(x: Tensor, hidden: int) -> list[Tensor | None]:
    """x, h0, c0, weights and biases, of about the sizes that training meets."""
    steps, batch, width = x.shape
    state = torch.zeros(batch, hidden)
    weights = [torch.randn(4 * hidden, n) / n**0.5 for n in (width, hidden)]
    bias = torch.zeros(4 * hidden)
    return [torch.randn(steps, batch, width), state, state, *weights, bias, bias, None]


def _step(kernel: str, tensors: list[Tensor | None]) -> Callable[[], int]:
    def step() -> int:
        y, h_n, c_n, kept = rnn_lstm.lstm_layer(*tensors, False, kernel, True)
        finals = (h_n, c_n) if kernel == TORCH else (None, None)
        needs = [True] * 7 + [False]
        grads = (y, h_n, c_n) if kernel == TORCH else (y, None, None)
        rnn_lstm.lstm_layer_backward(*grads, *tensors, y, *finals, kept, False, kernel, needs)
        return kept.numel() * kept.element_size()

    return step
