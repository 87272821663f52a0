"""What does a rollout cost in the memory model of the MONeT paper? A second way to weigh, beside `solve/rollout.py`.

There a step is a series of forward sweeps: sweep 0 computes everything, sweep t recomputes what backward op t needs, in
captured order, and then that op runs. What is live of forward and backward is fixed by the graph; only what is kept from sweep to
sweep is decided. And some choices need no search: a workspace lives for an instant, so the fastest algorithm whose workspace
fits at that instant is the right one, and an op runs in place where nobody will miss what it overwrites.

`Sweeps` holds the costs by *node*: an op's output, or the smaller encoding that it can make besides (`extra`), directly
after it. For a real graph it is empty (`NO_SWEEPS`), and nothing here is called.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.compiled import compiled, inlined

__all__ = ["NO_SWEEPS", "SweepBuffers", "Sweeps", "sweep_buffers", "weigh_sweeps"]

_Array = NDArray[Any]
_TICK = 1e-5
"""Seconds: sweeps count time in whole hundredths of a millisecond."""


class Sweeps(NamedTuple):
    """`x0[i]:x0[i + 1]` is the stretch of `x` that belongs to i. Times in hundredths of a millisecond."""

    sweep: _Array
    """Of each position; those after the last backward op have none (-1)."""
    node: _Array
    """Of each storage; -1 for gradients."""
    made: _Array
    """Of each op, the node it makes; -1 for backward ops."""
    row: _Array
    """Of each op, its row in `options0`: its node, or for a backward op one after all nodes."""
    size: _Array
    """Of each node, then of each backward op what it makes."""
    live: _Array
    """Bytes that are alive by the graph, likewise."""
    fixed: _Array
    """Parameters and gradients so far, likewise."""
    live0: _Array
    live_nodes: _Array
    """Of each node, the earlier ones that are alive while it is computed."""
    users0: _Array
    users: _Array
    has_extra: _Array
    options0: _Array
    time: _Array
    again: _Array
    """Of each op's algorithms: time at first, and when computed again ..."""
    space: _Array
    space_again: _Array
    """... and their workspaces."""
    overwrites: _Array
    """Of each op, the node it can overwrite, or -1 ..."""
    place_time: _Array
    place_space: _Array
    """... and what that costs."""
    extra_time: _Array
    extra_space: _Array
    """Of an op's smaller encoding, made beside a fresh output, ..."""
    extra_place_time: _Array
    extra_place_space: _Array
    """... or beside one in place."""


def _no_sweeps() -> Sweeps:
    return Sweeps(*(np.zeros(0, np.int64) for _ in Sweeps._fields))


NO_SWEEPS = _no_sweeps()


class SweepBuffers(NamedTuple):
    """What `weigh_sweeps` works in, by node; and what it writes down for `bench/monet.py` when asked."""

    live: _Array
    entry: _Array
    after: _Array
    """Kept on entry to a sweep, and after it."""
    computed: _Array
    needed: _Array
    """The sweep that last computed a node, and the one whose backward op last needed it."""
    recording: _Array
    kept: _Array
    """[sweep, node], only while recording: kept on entry, ..."""
    made: _Array
    """... computed, ..."""
    chosen: _Array
    """... and the option, or -2 in place. The last column is the backward op's."""


def sweep_buffers(sweeps: Sweeps) -> SweepBuffers:
    nodes = len(sweeps.has_extra)
    count = int(sweeps.sweep.max()) + 2 if nodes else 0
    return SweepBuffers(
        live=np.zeros(nodes, np.bool_),
        entry=np.zeros(nodes, np.bool_),
        after=np.zeros(nodes, np.bool_),
        computed=np.zeros(nodes, np.int64),
        needed=np.zeros(nodes, np.int64),
        recording=np.zeros(1, np.bool_),
        kept=np.zeros((count, nodes), np.bool_),
        made=np.zeros((count, nodes), np.bool_),
        chosen=np.zeros((count, nodes + 1), np.int64),
    )


@inlined
def _mark(nodes, sizes, first, last, storages, live):  # type: ignore[no-untyped-def]
    """Mark what is read as live. Returns the bytes that adds."""
    added = 0
    for i in range(first, last):
        j = nodes[storages[i]]
        if j >= 0 and not live[j]:
            live[j] = True
            added += sizes[j]
    return added


@inlined
def _walk(a, m, b, t, seq_op, first, last, runs):  # type: ignore[no-untyped-def]
    """Which ops of sweep t run, and what does it compute? Backwards, as in `rollout.weigh`. Returns (how many, bytes more live)."""
    count = more = 0
    for index in range(last, first - 1, -1):
        op = seq_op[index]
        node = m.made[op]
        wanted = t == 0
        for i in range(a.makes0[op], a.makes0[op + 1]):
            wanted = wanted or b.live[m.node[a.makes[i]]]
        runs[index] = wanted
        if not wanted:
            continue
        count += 1
        for i in range(a.makes0[op], a.makes0[op + 1]):
            j = m.node[a.makes[i]]
            if b.live[j]:
                b.live[j] = False
                more -= m.size[j]
                b.computed[j] = t
        b.computed[node] = t
        more += _mark(m.node, m.size, a.reads0[op], a.reads0[op + 1], a.reads, b.live)
    return count, more


@inlined
def _kept_for_the_one_before(a, m, b, seq_op, seq_pos, last):  # type: ignore[no-untyped-def]
    """Add to `entry` what the backward op that ends at `last` needs and its own sweep does not compute. Returns the bytes."""
    t = m.sweep[seq_pos[last]]
    added = 0
    if t <= 0:
        return added
    op = seq_op[last]
    for i in range(a.reads0[op], a.reads0[op + 1]):
        j = m.node[a.reads[i]]
        if j < 0 or b.entry[j]:
            continue
        computed = False
        index = last - 1
        while index >= 0 and m.sweep[seq_pos[index]] == t and not computed:
            other = seq_op[index]
            for k in range(a.makes0[other], a.makes0[other + 1]):
                computed = computed or a.makes[k] == a.reads[i]
            index -= 1
        if not computed:
            b.entry[j] = True
            added += m.size[j]
    return added


@inlined
def _best(times, spaces, first, last, room, rate):  # type: ignore[no-untyped-def]
    """The option of the least time, where each byte of workspace that does not fit costs `rate`; of equals the leanest."""
    best, least = first, np.inf
    for i in range(first, last):
        cost = times[i] + (rate * (spaces[i] - room) if spaces[i] > room else 0.0)
        if cost < least or (cost == least and spaces[i] < spaces[best]):
            best, least = i, cost
    return best


@inlined
def _missed(m, b, t, node):  # type: ignore[no-untyped-def]
    """Will anybody read the node that this one could overwrite after that?"""
    over = m.overwrites[node]
    if b.after[over] or b.needed[over] == t:
        return True
    for i in range(m.users0[over], m.users0[over + 1]):
        user = m.users[i]
        if user > node and b.computed[user] == t and user != over + 1:
            return True
    return False


@inlined
def _sweep(m, b, t, base, limit, rate, waiting):  # type: ignore[no-untyped-def]
    """(time, peak) of one forward sweep, on entry to which `waiting` bytes are kept."""
    peak = done = wanted = time = 0
    placed = False
    for j in range(b.live.shape[0]):
        peak = max(peak, base + wanted + waiting + done)
        if b.entry[j]:
            waiting -= m.size[j]
        if b.computed[j] == t:
            resting = done
            for i in range(m.live0[j], m.live0[j + 1]):
                if b.after[m.live_nodes[i]]:
                    resting -= m.size[m.live_nodes[i]]
            most = base + wanted + waiting + resting + m.size[j] + m.live[j]
            room = limit - most
            if m.options0[j] == m.options0[j + 1]:
                # The smaller encoding of the op before.
                time += m.extra_place_time[j - 1] if placed else m.extra_time[j - 1]
                most += m.extra_place_space[j - 1] if placed else m.extra_space[j - 1]
            else:
                times, spaces = (m.time, m.space) if t == 0 else (m.again, m.space_again)
                option = _best(times, spaces, m.options0[j], m.options0[j + 1], room, rate)
                cost, space = times[option], spaces[option]
                b.chosen[t, j] = option - m.options0[j]
                placed = m.overwrites[j] >= 0 and not _missed(m, b, t, j)
                if placed:
                    extra = extra_placed = 0
                    if m.has_extra[j] and b.computed[j + 1] == t:
                        extra, extra_placed = m.extra_time[j], m.extra_place_time[j]
                    placed = space > room or m.place_time[j] + extra_placed <= cost + extra
                if placed:
                    cost, space = m.place_time[j], m.place_space[j]
                    b.chosen[t, j] = -2
                time += cost
                most += space
            peak = max(peak, most)
        if b.after[j]:
            done += m.size[j]
        elif b.needed[j] == t:
            wanted += m.size[j]
    return time, peak


@compiled
def weigh_sweeps(a, m, buffers, length, during, limit, price):  # type: ignore[no-untyped-def]
    """(seconds, peak) of a rollout; what `rollout.weigh` is to the simulator's model. Algorithms are the fastest within the limit,
    or beyond it where that is worth `price` seconds per byte."""
    rate = price / _TICK
    seq_op, seq_pos, runs, b = buffers.seq_op, buffers.seq_pos, buffers.runs, buffers.sweeps
    during[:] = 0
    b.live[:] = False
    b.computed[:] = -1
    b.needed[:] = -1
    nodes = b.live.shape[0]
    total = peak = kept = 0
    last = length - 1
    while last >= 0:
        t = m.sweep[seq_pos[last]]
        first = last
        while first > 0 and m.sweep[seq_pos[first - 1]] == t:
            first -= 1
        runs[last] = True
        if t < 0:
            last -= 1
            continue
        own = nodes - 1 + t
        base = m.fixed[own - 1] + (m.live[own] if t > 0 else 0)
        # Until here `live` and `kept` are what is kept after this sweep.
        b.after[:] = b.live
        after = kept
        op = seq_op[last]
        beside = 0
        if t > 0:
            for i in range(a.reads0[op], a.reads0[op + 1]):
                j = m.node[a.reads[i]]
                if j >= 0:
                    b.needed[j] = t
            kept += _mark(m.node, m.size, a.reads0[op], a.reads0[op + 1], a.reads, b.live)
        else:
            b.needed[nodes - 2] = 0
        count, more = _walk(a, m, b, t, seq_op, first, last - (t > 0), runs)
        kept += more
        if t > 0:
            for i in range(a.reads0[op], a.reads0[op + 1]):
                j = m.node[a.reads[i]]
                if j >= 0 and not b.after[j]:
                    if b.computed[j] == t:
                        beside += m.size[j]
                    else:
                        b.after[j] = True
                        after += m.size[j]
        time = most = 0
        if count > 0:
            b.entry[:] = b.live
            waiting = kept
            if first > 0:
                waiting += _kept_for_the_one_before(a, m, b, seq_op, seq_pos, first - 1)
            time, most = _sweep(m, b, t, base, limit, rate, waiting)
        total += time
        if t > 0:
            held = m.fixed[own] + m.live[own] + m.size[own] + after + beside
            row = m.row[op]
            room = limit - held
            option = _best(m.time, m.space, m.options0[row], m.options0[row + 1], room, rate)
            b.chosen[t, nodes] = option - m.options0[row]
            total += m.time[option]
            # What rests between two backward ops is less than what was there during the first.
            most = max(most, held + m.space[option], base + kept if t == 1 else 0)
        during[seq_pos[last]] = most
        peak = max(peak, most)
        if b.recording[0]:
            b.kept[t + 1] = b.after
            b.made[t] = b.computed == t
        last = first - 1
    return total * _TICK, peak
