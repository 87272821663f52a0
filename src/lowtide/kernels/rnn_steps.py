"""The steps of an LSTM layer as compiled loops, forward and backward, for a share of its units (`kernels/rnn_fused.py` shares them out)."""

from __future__ import annotations

from lowtide.kernels.loops import inline, loop, wait
from lowtide.kernels.panels import (
    WIDTH,
    copy_columns,
    copy_rows,
    multiply,
    multiply_across,
    scratch,
)
from lowtide.kernels.rnn_cells import cell, cell_again, cell_back

__all__ = ["add_gradients", "run_steps", "run_steps_back"]

_AHEAD = 128
"""Rows of x that are multiplied at once: enough for full speed, and what they make is still in the cache in the steps that read it."""


@inline
def _by_units(first, last, weights, panels):  # type: ignore[no-untyped-def]
    for gate in range(len(weights)):
        end = min(last * WIDTH, weights.shape[1])
        copy_rows(weights[gate], first * WIDTH, end, panels[gate, first:last])


@inline
def _by_columns(first, last, weights, panels):  # type: ignore[no-untyped-def]
    for one in range(len(weights)):
        end = min(last * WIDTH, weights.shape[2])
        copy_columns(weights[one], first * WIDTH, end, panels[one, first:last])


@inline
def _at(array, row, column):  # type: ignore[no-untyped-def]
    """Address of a number in rows without gaps."""
    return array.ctypes.data + (row * array.shape[-1] + column) * 4


@loop
def run_steps(  # type: ignore[no-untyped-def]
    first,
    last,
    barrier,
    w_hh,
    panels,
    reverse,
    known,
    write,
    x,
    w_ih,
    x_panels,
    bias,
    gates,
    h,
    y,
    c,
    cells,
):
    """Where there is an x, the gates' part that comes from it is not in them yet. Weights that there are go into their panels first."""
    steps, batch, width = gates.shape
    hidden = width // 4
    own, end = first // WIDTH, -(-last // WIDTH)
    _by_units(own, end, w_hh, panels)
    _by_units(own, end, w_ih, x_panels)
    copied = scratch()
    rows, ahead = gates.reshape(steps * batch, width), max(1, _AHEAD // batch)
    for step in range(steps):
        t = steps - 1 - step if reverse else step
        if x.size and step % ahead == 0:
            top, bottom = (max(0, t + 1 - ahead), t + 1) if reverse else (t, min(t + ahead, steps))
            top, bottom = top * batch, bottom * batch
            multiply(x[top:bottom], x_panels[:, own:end], hidden, False, rows[top:bottom], first, last, copied)  # fmt: skip
        if not known:
            before = y[t + 1 if reverse else t - 1] if step else h
            multiply(before, panels[:, own:end], hidden, True, gates[t], first, last, copied)
        for b in range(batch):
            row, sample = _at(gates, t * batch + b, first), t * batch + b
            state, out = _at(c, b, first), _at(y, sample, first) if write else 0
            noted = _at(cells, sample, first) if cells.size else 0
            if known:
                cell_again(last - first, 4 * hidden, (row, state, out, noted))
            else:
                cell(last - first, 4 * hidden, (row, _at(bias, 0, first), state, out, noted))
        if write and barrier:
            wait(barrier)


@loop
def run_steps_back(  # type: ignore[no-untyped-def]
    first, last, barrier, w_hh, panels, reverse, gates, cells, start, arriving, dh, dc, changes, db
):
    steps, batch, width = gates.shape
    hidden = width // 4
    own, end = first // WIDTH, -(-last // WIDTH)
    _by_columns(own, end, w_hh, panels)
    copied = scratch()
    for step in range(steps):
        t = step if reverse else steps - 1 - step
        before = start if step == steps - 1 else cells[t + 1 if reverse else t - 1]
        for b in range(batch):
            sample = t * batch + b
            there = _at(arriving, sample, first) if arriving.size else 0
            total = _at(db, 0, first) if db.size else 0
            cell_back(
                last - first, 4 * hidden,
                (_at(gates, sample, first), _at(cells, sample, first), _at(before, b, first), there,
                 _at(dh, b, first), _at(dc, b, first), _at(changes, sample, first), total),
            )  # fmt: skip
        if barrier:
            wait(barrier)
        multiply(changes[t], panels[:, own:end], 0, False, dh, first, last, copied)


@loop
def add_gradients(  # type: ignore[no-untyped-def]
    first,
    last,
    barrier,
    add,
    reverse,
    changes,
    x,
    h,
    y,
    w_ih,
    w_panels,
    x_panels,
    h_panels,
    dx,
    dw_ih,
    dw_hh,
):
    """Of x and of both weights, from those of the gates of some steps. What is not wanted is empty."""
    steps, batch, width = changes.shape
    hidden = width // 4
    rows = changes.reshape(steps * batch, width)
    own, end, all_units = first // WIDTH, -(-last // WIDTH), -(-hidden // WIDTH)
    inputs = -(-x.shape[1] // WIDTH)
    start, stop = inputs * own // all_units, inputs * end // all_units
    columns, edge = start * WIDTH, min(stop * WIDTH, x.shape[1])
    _by_columns(start, stop, w_ih, w_panels)
    copied = scratch()
    if dx.size and columns < edge:
        multiply(rows, w_panels[:, start:stop], 0, False, dx, columns, edge, copied)
    if dw_ih.size and columns < edge:
        copy_columns(x, columns, edge, x_panels[0, start:stop])
    if dw_hh.size:
        for step in range(steps):
            t = steps - 1 - step if reverse else step
            before = y[t + 1 if reverse else t - 1] if step else h
            part = h_panels[0, own:end, t * batch : (t + 1) * batch]
            copy_columns(before, first, last, part)
    if barrier:
        wait(barrier)
    for place in range(first, width, hidden):
        multiply_across(rows, place, place + last - first, x_panels, h_panels, add, dw_ih, dw_hh, copied)  # fmt: skip
