"""The steps of an LSTM layer as compiled loops, forward and backward, each thread with a share of the units.

What only one thread reads and writes again and again is its own memory: sums before activation, the cell state and both gradients that go from
step to step. In the rows of the whole layer the shares of two threads would meet within a line of the cache, and every write take it away from
the other. What all read later (gates, y, gradients of gates) is written there once.
"""

from __future__ import annotations

import numpy as np

from lowtide.kernels.jobs import enter, floats, job, to_fixed_tuple, wait
from lowtide.kernels.loops import inline
from lowtide.kernels.panels import (
    WIDTH,
    copy_columns,
    copy_rows,
    multiply,
    multiply_across,
    scratch,
)
from lowtide.kernels.rnn_cells import cell, cell_again, cell_back

__all__ = ["GATES", "TOGETHER", "add_gradients", "run_steps", "run_steps_back"]

GATES = 4
TOGETHER = 4
"""Units of which a thread has all or none: their gates' weights fill a panel."""
_AHEAD = 128
"""Rows of x that are multiplied at once: enough for full speed, and what they make is still in the cache in the steps that read it."""


@inline
def _units(hidden, index, count):  # type: ignore[no-untyped-def]
    """A thread's share: first, last."""
    fours = -(-hidden // TOGETHER)
    first, last = TOGETHER * (fours * index // count), TOGETHER * (fours * (index + 1) // count)
    return min(first, hidden), min(last, hidden)


@inline
def columns_of(hidden, count):  # type: ignore[no-untyped-def]
    """Panels of columns for the largest share of so many threads."""
    fours = (hidden + TOGETHER - 1) // TOGETHER
    most = (fours + count - 1) // count
    return (most * TOGETHER + WIDTH - 1) // WIDTH


@inline
def _share(number, index, count):  # type: ignore[no-untyped-def]
    return number * index // count, number * (index + 1) // count


@inline
def _at(array, row, column):  # type: ignore[no-untyped-def]
    """Address of a number in rows without gaps."""
    return array.ctypes.data + (row * array.shape[-1] + column) * 4


@job
def run_steps(place):  # type: ignore[no-untyped-def]
    """Where there is no x, the part of their sums that comes from it is where the gates will be. Weights go into their panels first, unless they
    are there for as many threads."""
    index, count, barrier, told = enter(place)
    if not count:
        return
    (
        steps, batch, hidden, inputs, by_samples, reverse, known, write, packed,
        w_hh_at, panels_at, x_at, w_ih_at, x_panels_at, bias_at, gates_at, h_at, y_at, c_at, cells_at,
    ) = to_fixed_tuple(told, 20)  # fmt: skip
    first, last = (0, hidden) if by_samples else _units(hidden, index, count)
    low, high = _share(batch, index, count) if by_samples else (0, batch)
    units, samples, width = last - first, high - low, GATES * hidden
    all_panels, many = -(-hidden // TOGETHER), -(-units // TOGETHER)
    own = first // TOGETHER
    panels = floats(panels_at, all_panels, hidden, WIDTH)[own : own + many]
    x_panels = floats(x_panels_at, all_panels, inputs, WIDTH)[own : own + many]
    if packed != (1 if by_samples else count):
        own, end = _share(many, index, count) if by_samples else (0, many)
        if not known:
            copy_rows(floats(w_hh_at, GATES, hidden, hidden), first, last, panels, own, end)
        if x_at:
            copy_rows(floats(w_ih_at, GATES, hidden, inputs), first, last, x_panels, own, end)
        if by_samples:
            wait(barrier)
    gates, x = floats(gates_at, steps, batch, width), floats(x_at, steps * batch, inputs)
    y, h = floats(y_at, steps, batch, hidden), floats(h_at, batch, hidden)
    c, state = floats(c_at, batch, hidden), np.empty((samples, units), np.float32)
    state[:] = c[low:high, first:last]
    copied, ahead = scratch(), max(1, _AHEAD // max(1, samples)) if x_at else 1
    columns, origin, most = many * WIDTH, 0, min(ahead, steps) * samples
    sums = np.empty((0 if known else most, columns), np.float32)
    near = np.empty((most if x_at and by_samples else 0, inputs), np.float32)
    for step in range(steps):
        t = steps - 1 - step if reverse else step
        if x_at and step % ahead == 0:
            origin, edge = (max(0, t + 1 - ahead), t + 1) if reverse else (t, min(t + ahead, steps))
            given = x[origin * batch : edge * batch]
            if by_samples:
                for one in range(edge - origin):
                    there = (origin + one) * batch
                    near[one * samples : (one + 1) * samples] = x[there + low : there + high]
                given = near[: (edge - origin) * samples]
            multiply(given, x_panels, False, sums, 0, columns, copied)
        elif not (x_at or known):
            origin = t
            for gate in range(GATES):
                place = gate * hidden + first
                sums[:, gate * units : (gate + 1) * units] = gates[
                    t, low:high, place : place + units
                ]
        if not known:
            before = y[t + 1 if reverse else t - 1] if step else h
            now = sums[(t - origin) * samples : (t - origin + 1) * samples]
            multiply(before[low:high], panels, True, now, 0, columns, copied)
        for b in range(samples):
            sample = t * batch + low + b
            row, own_state = _at(gates, sample, first), _at(state, b, 0)
            out = _at(y, sample, first) if write else 0
            noted = cells_at + (sample * hidden + first) * 4 if cells_at else 0
            if known:
                cell_again(units, 4 * hidden, (row, own_state, out, noted))
            else:
                made = _at(sums, (t - origin) * samples + b, 0)
                cell(units, 4 * hidden, (made, 4 * units, row, bias_at + first * 4, own_state, out, noted))  # fmt: skip
        if write and not by_samples:
            wait(barrier)
    c[low:high, first:last] = state


@job
def run_steps_back(place):  # type: ignore[no-untyped-def]
    """Gradients of the gates before their activation, and their sums if `db` is there."""
    index, count, barrier, told = enter(place)
    if not count:
        return
    (
        steps, batch, hidden, by_samples, reverse, packed,
        w_hh_at, panels_at, gates_at, cells_at, start_at, arriving_at, dh_at, dc_at, changes_at, db_at,
    ) = to_fixed_tuple(told, 16)  # fmt: skip
    first, last = (0, hidden) if by_samples else _units(hidden, index, count)
    low, high = _share(batch, index, count) if by_samples else (0, batch)
    units, samples, width = last - first, high - low, GATES * hidden
    many, place = -(-units // WIDTH), 0 if by_samples else index * columns_of(hidden, count)
    panels = floats(panels_at, place + many, width, WIDTH)[place:]
    if packed != (1 if by_samples else count):
        own, end = _share(many, index, count) if by_samples else (0, many)
        edge = min(last, first + end * WIDTH)
        copy_columns(floats(w_hh_at, width, hidden), first + own * WIDTH, edge, panels[own:end])
        if by_samples:
            wait(barrier)
    gates, cells = floats(gates_at, steps, batch, width), floats(cells_at, steps, batch, hidden)
    start, changes = floats(start_at, batch, hidden), floats(changes_at, steps, batch, width)
    dh, dc = floats(dh_at, batch, hidden), floats(dc_at, batch, hidden)
    own_dh = np.empty((samples, many * WIDTH), np.float32)
    own_dc = np.empty_like(own_dh)
    own_dh[:, :units], own_dc[:, :units] = dh[low:high, first:last], dc[low:high, first:last]
    copied = scratch()
    total = db_at + (index * width if by_samples else first) * 4 if db_at else 0
    for step in range(steps):
        t = step if reverse else steps - 1 - step
        before = start if step == steps - 1 else cells[t + 1 if reverse else t - 1]
        for b in range(samples):
            sample = t * batch + low + b
            there = arriving_at + (sample * hidden + first) * 4 if arriving_at else 0
            cell_back(
                units, 4 * hidden,
                (_at(gates, sample, first), _at(cells, sample, first), _at(before, low + b, first), there,
                 _at(own_dh, b, 0), _at(own_dc, b, 0), _at(changes, sample, first), total),
            )  # fmt: skip
        if not by_samples:
            wait(barrier)
        multiply(changes[t, low:high], panels, False, own_dh, 0, many * WIDTH, copied)
    dh[low:high, first:last], dc[low:high, first:last] = own_dh[:, :units], own_dc[:, :units]


@job
def add_gradients(place):  # type: ignore[no-untyped-def]
    """Of x and of both weights, from those of the gates of some steps. What is not wanted is not there. All threads copy into panels, then they
    share the rows of each product."""
    index, count, barrier, told = enter(place)
    if not count:
        return
    (
        steps, batch, hidden, inputs, add, reverse, packed, changes_at, x_at, h_at, y_at,
        w_at, w_panels_at, x_panels_at, h_panels_at, dx_at, dw_ih_at, dw_hh_at,
    ) = to_fixed_tuple(told, 18)  # fmt: skip
    width, length = GATES * hidden, steps * batch
    rows = floats(changes_at, length, width)
    some, all_units = -(-inputs // WIDTH), -(-hidden // WIDTH)
    w_panels = floats(w_panels_at, some, width, WIDTH)
    x_panels = floats(x_panels_at, some, length, WIDTH)
    h_panels = floats(h_panels_at, all_units, length, WIDTH)
    own, end = some * index // count, some * (index + 1) // count
    first, last = own * WIDTH, min(end * WIDTH, inputs)
    if dx_at and not packed:
        copy_columns(floats(w_at, width, inputs), first, last, w_panels[own:end])
    if dw_ih_at:
        copy_columns(floats(x_at, length, inputs), first, last, x_panels[own:end])
    if dw_hh_at:
        h, y = floats(h_at, batch, hidden), floats(y_at, steps, batch, hidden)
        own, end = all_units * index // count, all_units * (index + 1) // count
        first, last = own * WIDTH, min(end * WIDTH, hidden)
        for step in range(steps):
            t = steps - 1 - step if reverse else step
            before = y[t + 1 if reverse else t - 1] if step else h
            copy_columns(before, first, last, h_panels[own:end, t * batch : (t + 1) * batch])
    wait(barrier)
    copied = scratch()
    if dx_at:
        top, bottom = length * index // count, length * (index + 1) // count
        dx = floats(dx_at, length, inputs)
        multiply(rows[top:bottom], w_panels, False, dx[top:bottom], 0, inputs, copied)
    dw_ih = floats(dw_ih_at, width if dw_ih_at else 0, inputs)
    dw_hh = floats(dw_hh_at, width if dw_hh_at else 0, hidden)
    first, last = width * index // count, width * (index + 1) // count
    multiply_across(rows, first, last, x_panels, h_panels, add, dw_ih, dw_hh, copied)
