"""The steps of an LSTM layer as compiled loops, forward and backward, for a share of its units (`kernels/rnn_fused.py` shares them out)."""

from __future__ import annotations

import numpy as np

from lowtide.kernels.elementary import sigmoid, tanh
from lowtide.kernels.loops import inline, loop, wait
from lowtide.kernels.panels import (
    WIDTH,
    copy_columns,
    copy_rows,
    multiply,
    multiply_across,
    scratch,
)

__all__ = ["add_gradients", "gates_panels", "hidden_panels", "run_steps", "run_steps_back"]

_ONE = np.float32(1)


@loop
def gates_panels(first, last, weights, panels):  # type: ignore[no-untyped-def]
    for gate in range(4):
        end = min(last * WIDTH, weights.shape[1])
        copy_rows(weights[gate], first * WIDTH, end, panels[gate, first:last])


@loop
def hidden_panels(first, last, weights, panels):  # type: ignore[no-untyped-def]
    copy_columns(weights, first * WIDTH, min(last * WIDTH, weights.shape[1]), panels[first:last])


@loop
def run_steps(  # type: ignore[no-untyped-def]
    first, last, barrier, panels, reverse, known, write, x, x_panels, bias, gates, h, y, c, cells
):
    """Where there is an x, the gates' part that comes from it is not in them yet."""
    steps, batch, width = gates.shape
    hidden = width // 4
    own, end = first // WIDTH, -(-last // WIDTH)
    copied = scratch()
    if x.size:
        rows = gates.reshape(steps * batch, width)
        multiply(x, x_panels[:, own:end], hidden, False, rows, first, last, copied)
    for step in range(steps):
        t = steps - 1 - step if reverse else step
        if not known:
            before = y[t + 1 if reverse else t - 1] if step else h
            multiply(before, panels[:, own:end], hidden, True, gates[t], first, last, copied)
        for b in range(batch):
            row = gates[t, b]
            i, f = row[first:last], row[hidden + first : hidden + last]
            g = row[2 * hidden + first : 2 * hidden + last]
            o = row[3 * hidden + first : 3 * hidden + last]
            if not known:
                _activate_sigmoid(i, bias[first:last])
                _activate_sigmoid(f, bias[hidden + first : hidden + last])
                _activate_tanh(g, bias[2 * hidden + first : 2 * hidden + last])
                _activate_sigmoid(o, bias[3 * hidden + first : 3 * hidden + last])
            _next_cell(i, f, g, c[b, first:last])
            if write:
                _output(o, c[b, first:last], y[t, b, first:last])
            if cells.size:
                cells[t, b, first:last] = c[b, first:last]
        if write and barrier:
            wait(barrier)


@loop
def run_steps_back(  # type: ignore[no-untyped-def]
    first, last, barrier, panels, reverse, gates, cells, start, arriving, dh, dc, changes, db
):
    steps, batch, width = gates.shape
    hidden = width // 4
    own, end = first // WIDTH, -(-last // WIDTH)
    squashed, copied = np.empty(last - first, np.float32), scratch()
    for step in range(steps):
        t = step if reverse else steps - 1 - step
        before = start if step == steps - 1 else cells[t + 1 if reverse else t - 1]
        for b in range(batch):
            if arriving.size:
                _add(dh[b, first:last], arriving[t, b, first:last])
            row, change = gates[t, b], changes[t, b]
            f, o = row[hidden + first : hidden + last], row[3 * hidden + first : 3 * hidden + last]
            i, g = row[first:last], row[2 * hidden + first : 2 * hidden + last]
            _of_cell(
                o, cells[t, b, first:last], dh[b, first:last], dc[b, first:last],
                change[3 * hidden + first : 3 * hidden + last], squashed,
            )  # fmt: skip
            _of_gates(
                i, f, g, before[b, first:last], dc[b, first:last], change[first:last],
                change[hidden + first : hidden + last], change[2 * hidden + first : 2 * hidden + last],
            )  # fmt: skip
            if db.size:
                for place in range(first, width, hidden):
                    _add(db[place : place + last - first], change[place : place + last - first])
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
    copied = scratch()
    if dx.size and columns < edge:
        multiply(rows, w_panels[:, start:stop], 0, False, dx, columns, edge, copied)
    if dw_ih.size and columns < edge:
        copy_columns(x, columns, edge, x_panels[start:stop])
    if dw_hh.size:
        for step in range(steps):
            t = steps - 1 - step if reverse else step
            before = y[t + 1 if reverse else t - 1] if step else h
            copy_columns(before, first, last, h_panels[own:end, t * batch : (t + 1) * batch])
    if barrier:
        wait(barrier)
    for place in range(first, width, hidden):
        if dw_ih.size:
            multiply_across(rows, place, place + last - first, x_panels, add, dw_ih, copied)
        if dw_hh.size:
            multiply_across(rows, place, place + last - first, h_panels, add, dw_hh, copied)


# Loops over the units of one sample. Several short ones, because a compiler that cannot tell whether two of many arrays overlap does not do
# eight elements at once; they stay in the cache.


@inline
def _activate_sigmoid(gate, bias):  # type: ignore[no-untyped-def]
    for k in range(gate.size):
        gate[k] = sigmoid(gate[k] + bias[k])


@inline
def _activate_tanh(gate, bias):  # type: ignore[no-untyped-def]
    for k in range(gate.size):
        gate[k] = tanh(gate[k] + bias[k])


@inline
def _next_cell(i, f, g, c):  # type: ignore[no-untyped-def]
    for k in range(c.size):
        c[k] = f[k] * c[k] + i[k] * g[k]


@inline
def _output(o, c, y):  # type: ignore[no-untyped-def]
    for k in range(y.size):
        y[k] = o[k] * tanh(c[k])


@inline
def _add(total, more):  # type: ignore[no-untyped-def]
    for k in range(total.size):
        total[k] += more[k]


@inline
def _of_cell(o, c, dh, dc, do, squashed):  # type: ignore[no-untyped-def]
    for k in range(c.size):
        squashed[k] = tanh(c[k])
    for k in range(c.size):
        do[k] = dh[k] * squashed[k] * o[k] * (_ONE - o[k])
    for k in range(c.size):
        dc[k] += dh[k] * o[k] * (_ONE - squashed[k] * squashed[k])


@inline
def _of_gates(i, f, g, before, dc, di, df, dg):  # type: ignore[no-untyped-def]
    for k in range(dc.size):
        di[k] = dc[k] * g[k] * i[k] * (_ONE - i[k])
    for k in range(dc.size):
        df[k] = dc[k] * before[k] * f[k] * (_ONE - f[k])
    for k in range(dc.size):
        dg[k] = dc[k] * i[k] * (_ONE - g[k] * g[k])
    for k in range(dc.size):
        dc[k] *= f[k]
