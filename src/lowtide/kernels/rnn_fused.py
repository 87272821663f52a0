"""One LSTM layer on CPU in float32, in few passes over memory: one compiled loop runs all steps, and little is kept.

Threads share the hidden units. Forward, each multiplies its part of the input of all steps, then runs through the steps with its units: their
part of the small GEMM, with weights that were packed once, then gates, cell and output of one sample after the other, while they are in the
cache. Once per step the threads wait for each other, and read what the others wrote. Where they share the samples instead, they need not,
but each reads all the weights: that is for weights that stay in a core's own cache, and enough samples for the products.

Backward goes through the sequence in stretches of a few steps, the last first, and holds the gradients of the gates of one stretch at
a time. Cell states are run again from the state at the start of the stretch, which is in the workspace, elementwise. There are two ways
to the gates:

    kept       in the workspace, too: (T, B, 4H), activated, as forward made them
    not kept   computed again, from x and from y, which holds all hidden states: same calls on same numbers, so same bits

A `Way` says how long a stretch is, who multiplies over all its steps, our panels or torch, and whether all cell states are kept. Which is faster depends on the machine and on
the sizes: `lowtide.nn.autotune` measures it. Ways differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lowtide.kernels.loops import COMPILED
from lowtide.kernels.pages import in_large_pages
from lowtide.kernels.panels import BEATS_BLAS, WIDTH
from lowtide.kernels.rnn_steps import (
    TOGETHER,
    add_gradients,
    columns_of,
    run_steps,
    run_steps_back,
)
from lowtide.rules.recurrent import ROWS, kept_numbers, stretch

__all__ = ["Way", "backward", "forward", "supports", "workspace_elements"]

_NEAR = 2**20
"""Bytes of weights that stay in a core's own cache."""
_SAMPLES = 16
"""For a thread: enough for the products."""


@dataclass(frozen=True)
class Way:
    """The kernel is named `str(way)`, or "fused" for the default way."""

    panels: bool = BEATS_BLAS
    """Products over all steps by our panels, and not by torch."""
    rows: int = ROWS
    """About so many, steps by samples, in a stretch."""
    cells: bool = False
    """Cell states of all steps are kept beside the gates, and not run again: five numbers per output, not four."""

    def __str__(self) -> str:
        products = "panels" if self.panels else "torch"
        return f"fused {products} {self.rows}{' cells' if self.cells else ''}"

    @staticmethod
    @cache
    def named(kernel: str) -> Way | None:
        """None for another kernel than ours."""
        match kernel.split():
            case ["fused"]:
                return Way()
            case ["fused", ("panels" | "torch") as products, rows, *more] if rows.isdecimal():
                if more in ([], ["cells"]):
                    return Way(products == "panels", int(rows), bool(more))
        return None


def supports(x: Tensor, w_hr: Tensor | None) -> bool:
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return plain and w_hr is None and COMPILED


def workspace_elements(x: Tensor, hidden: int, keep: bool, way: Way) -> int:
    steps, batch = (int(n) for n in x.shape[:2])
    return kept_numbers(steps, batch, hidden, keep, way.rows, way.cells)


def forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    reverse: bool,
    keep: bool,
    way: Way = Way(),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, h_n, c_n and the workspace, with the gates if `keep`."""
    layer = _Layer(x, h0, w_ih, w_hh, b_ih, b_hh, reverse, way)
    y = in_large_pages(x.new_empty(layer.steps, layer.batch, layer.hidden))
    c = c0.clone(memory_format=torch.contiguous_format)
    workspace = in_large_pages(x.new_empty(workspace_elements(x, layer.hidden, keep, way)))
    cells, gates = layer.parts(workspace)
    every = len(cells) == layer.steps
    if not keep:
        gates = layer.scratch(layer.most)
    for number, (first, last) in enumerate(layer.stretches()):
        if number and not every:
            cells[number - 1].copy_(c)
        part = gates[first:last] if keep else gates[: last - first]
        layer.run(part, y, first, last, c, cells[first:last] if every else None, write=True)
    return y, y[0 if reverse else -1].clone(), c, workspace


def backward(
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    y: Tensor,
    workspace: Tensor,
    reverse: bool,
    needs: Sequence[bool],
    way: Way = Way(),
) -> list[Tensor | None]:
    """Gradients of x, h0, c0, w_ih, w_hh, b_ih, b_hh, and None for the projection; None where not needed."""
    grad_y, grad_h, grad_c = grads
    layer = _Layer(x, h0, w_ih, w_hh, b_ih, b_hh, reverse, way)
    sums = _Sums(layer, needs)
    dh, dc = _start(grad_h, h0), _start(grad_c, c0)
    kept, gates = layer.parts(workspace)
    every = len(kept) == layer.steps
    again = None if len(gates) else layer.scratch(layer.most)
    scratch = None if every else layer.scratch(layer.most, layer.hidden)
    changes = layer.scratch(layer.most)
    for number, (first, last) in reversed(list(enumerate(layer.stretches()))):
        steps = last - first
        before = (last if reverse else first - 1) if every else number - 1
        start = c0.contiguous() if number == 0 else kept[before]
        part = gates[first:last] if again is None else again[:steps]
        cells = kept[first:last] if scratch is None else scratch[:steps]
        if not every:
            layer.run(part, y, first, last, start.clone(), cells, known=again is None)
        layer.run_back(part, cells, start, grad_y, first, last, dh, dc, changes[:steps], sums.db)
        sums.add(changes[:steps], y, first, last)
    return sums.gradients(dh, dc)


class _Layer:
    """What stays the same over all steps. Where `reverse`, a stretch is run from its last step in time to its first."""

    def __init__(
        self,
        x: Tensor,
        h0: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        reverse: bool,
        way: Way,
    ) -> None:
        self.x, self.h0, self.reverse, self.way = x, h0.contiguous(), reverse, way
        self.w_ih, self.w_hh = w_ih.contiguous(), w_hh.contiguous()
        self.steps, self.batch = x.shape[:2]
        self.hidden = w_hh.shape[1]
        self.bias = w_hh.new_zeros(4 * self.hidden) if b_ih is None or b_hh is None else b_ih + b_hh
        self.most = stretch(self.steps, self.batch, way.rows)
        self.threads = min(torch.get_num_threads(), _panels(self.hidden))
        near = self.w_hh.numel() * self.w_hh.element_size() <= _NEAR
        self.by_samples = 1 < self.threads * _SAMPLES <= self.batch and near
        fours = -(-self.hidden // TOGETHER)
        self.to_gates = _Panels(self.w_hh, fours, self.hidden)
        self.from_input = _Panels(self.w_ih, fours, self.w_ih.shape[1])
        columns = self.threads * columns_of(self.hidden, self.threads)
        self.to_hidden = _Panels(self.w_hh, columns, 4 * self.hidden)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """In the order of forward, as places in time: first, last."""
        for start in range(0, self.steps, self.most):
            end = min(start + self.most, self.steps)
            yield (self.steps - end, self.steps - start) if self.reverse else (start, end)

    def parts(self, workspace: Tensor) -> tuple[Tensor, Tensor]:
        """Cell states of all steps, or at the starts of stretches, but the first, which is given; and the gates of all steps, or of none."""
        one = self.batch * self.hidden
        every = workspace.numel() == 5 * self.steps * one
        cells = one * (self.steps if every else (self.steps - 1) // self.most)
        return (
            workspace[:cells].view(-1, self.batch, self.hidden),
            workspace[cells:].view(-1, self.batch, 4 * self.hidden),
        )

    def scratch(self, steps: int, width: int = 0) -> Tensor:
        return in_large_pages(self.x.new_empty(steps, self.batch, width or 4 * self.hidden))

    def before(self, y: Tensor, first: int, last: int) -> Tensor:
        """The hidden state before this stretch."""
        if self.reverse:
            return self.h0 if last == self.steps else y[last]
        return self.h0 if first == 0 else y[first - 1]

    def with_before(
        self, changes: Tensor, y: Tensor, first: int, last: int
    ) -> tuple[Tensor, Tensor]:
        """What is known of each step of the stretch, and the hidden state before it; without the very first step where that state is zero."""
        if last < self.steps if self.reverse else first:
            step = 1 if self.reverse else -1
            return changes, y[first + step : last + step]
        later = y[first + 1 : last] if self.reverse else y[first : last - 1]
        if self.h0.count_nonzero():
            h0 = self.h0[None]
            return changes, torch.cat([later, h0] if self.reverse else [h0, later])
        return changes[:-1] if self.reverse else changes[1:], later

    def rows(self, first: int, last: int) -> Tensor:
        """The input of a stretch, sample by sample."""
        return self.x[first:last].contiguous().flatten(0, 1)

    def run(
        self,
        gates: Tensor,
        y: Tensor,
        first: int,
        last: int,
        c: Tensor,
        cells: Tensor | None = None,
        *,
        known: bool = False,
        write: bool = False,
    ) -> None:
        """Gates unless they are known, y if it is to be written, and cells if asked for; c becomes the state at the end."""
        x = None
        if not known:
            rows = self.rows(first, last)
            if self.way.panels:
                x = rows
            else:
                torch.mm(rows, self.w_ih.t(), out=gates.flatten(0, 1))
        w_hh, w_ih = self.to_gates, self.from_input
        packed = 0 if known else w_hh.packed
        ran = run_steps.run(
            self.threads, last - first, self.batch, self.hidden, self.x.shape[2], self.by_samples, self.reverse, known, write, packed,
            w_hh.weights, w_hh.place(not known), x, w_ih.weights, w_ih.place(x is not None),
            self.bias, gates, self.before(y, first, last), y[first:last], c, cells,
        )  # fmt: skip
        if not known:
            w_hh.packed = self.packed_for(ran)

    def run_back(
        self,
        gates: Tensor,
        cells: Tensor,
        start: Tensor,
        grad_y: Tensor | None,
        first: int,
        last: int,
        dh: Tensor,
        dc: Tensor,
        changes: Tensor,
        db: Tensor | None,
    ) -> None:
        """Gradients of the gates before their activation go into `changes` and are added to `db`; dh and dc become those at the start of the stretch."""
        arriving = None if grad_y is None else grad_y[first:last].contiguous()
        w_hh = self.to_hidden
        ran = run_steps_back.run(
            self.threads, last - first, self.batch, self.hidden, self.by_samples, self.reverse, w_hh.packed,
            w_hh.weights, w_hh.place(), gates, cells, start, arriving, dh, dc, changes, db,
        )  # fmt: skip
        w_hh.packed = self.packed_for(ran)

    def packed_for(self, threads: int) -> int:
        """Panels of all units are in the order of one thread's."""
        return 1 if self.by_samples else threads


class _Panels:
    """Weights in the order in which the loops read them: (panels, length, 16). The loop that first reads them copies them there, each thread its own."""

    def __init__(self, weights: Tensor, panels: int, length: int) -> None:
        self.weights, self.size = weights, (panels, length, WIDTH)
        self.packed = 0
        """For so many threads."""
        self.made: Tensor | None = None

    def place(self, wanted: bool = True) -> Tensor | None:
        if wanted and self.made is None:
            self.made = in_large_pages(self.weights.new_empty(self.size))
        return self.made


class _Sums:
    """The gradients that are sums over all steps, and that of x."""

    def __init__(self, layer: _Layer, needs: Sequence[bool]) -> None:
        self.layer, self.needs = layer, needs
        self.dx = in_large_pages(layer.x.new_empty(layer.x.shape)) if needs[0] else None
        self.dw_ih = layer.w_ih.new_empty(layer.w_ih.shape) if needs[3] else None
        self.dw_hh = layer.w_hh.new_empty(layer.w_hh.shape) if needs[4] else None
        sums = layer.threads if layer.by_samples else 1
        self.db = layer.w_ih.new_zeros(sums, 4 * layer.hidden) if needs[5] or needs[6] else None
        self.w_panels = _Panels(layer.w_ih, _panels(layer.w_ih.shape[1]), 4 * layer.hidden)
        self.first = 0
        """Then 1: by how much what is there counts."""

    def add(self, changes: Tensor, y: Tensor, first: int, last: int) -> None:
        add = self.by_panels if self.layer.way.panels else self.by_torch
        add(changes, y, first, last)
        self.first = 1

    def by_panels(self, changes: Tensor, y: Tensor, first: int, last: int) -> None:
        layer = self.layer
        x, h = layer.rows(first, last), layer.before(y, first, last)
        inputs = x.shape[1]
        x_panels, h_panels = (
            x.new_empty(_panels(columns), len(x), WIDTH) if wanted else None
            for columns, wanted in ((inputs, self.needs[3]), (layer.hidden, self.needs[4]))
        )
        dx, w_ih = None if self.dx is None else self.dx[first:last], self.w_panels
        w_ih.packed = add_gradients.run(
            layer.threads, last - first, layer.batch, layer.hidden, inputs, self.first > 0, layer.reverse, w_ih.packed,
            changes, x, h, y[first:last], w_ih.weights, w_ih.place(dx is not None), x_panels, h_panels,
            dx, self.dw_ih, self.dw_hh,
        )  # fmt: skip

    def by_torch(self, changes: Tensor, y: Tensor, first: int, last: int) -> None:
        layer, rows = self.layer, changes.flatten(0, 1)
        if self.dx is not None:
            torch.mm(rows, layer.w_ih, out=self.dx[first:last].flatten(0, 1))
        if self.dw_ih is not None:
            self.dw_ih.addmm_(rows.t(), layer.rows(first, last), beta=self.first)
        if self.dw_hh is not None:
            part, before = (t.flatten(0, 1) for t in layer.with_before(changes, y, first, last))
            self.dw_hh.addmm_(part.t(), before, beta=self.first)

    def gradients(self, dh: Tensor, dc: Tensor) -> list[Tensor | None]:
        db = None if self.db is None else self.db.sum(0)
        second = None if db is None else db.clone()
        made = (self.dx, dh, dc, self.dw_ih, self.dw_hh, db, second, None)
        return [g if need else None for g, need in zip(made, self.needs, strict=True)]


def _start(gradient: Tensor | None, state: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(state, memory_format=torch.contiguous_format)
    return gradient.clone(memory_format=torch.contiguous_format)


def _panels(columns: int) -> int:
    return -(-columns // WIDTH)
