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

from lowtide.solve.compiled import compiled

__all__ = ["NO_SWEEPS", "Sweeps", "sweep_buffers", "weigh_sweeps"]

_Array = NDArray[Any]


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


def sweep_buffers(sweeps: Sweeps) -> tuple[_Array, ...]:
    """What `weigh_sweeps` fills: by sweep and node, what is kept on entry, computed, needed, and with which option; by sweep the
    bytes kept and the number of ops computed."""
    nodes = len(sweeps.has_extra)
    count = int(sweeps.sweep.max()) + 2 if nodes else 0
    flags = [np.zeros((count, nodes), np.bool_) for _ in range(3)]
    sums = [np.zeros(count, np.int64) for _ in range(2)]
    return (*flags, np.zeros((count, nodes + 1), np.int64), *sums)


@compiled
def _walk(a, m, seq_op, seq_pos, length, live, runs, kept, computed, needed, kept_bytes, counts):  # type: ignore[no-untyped-def]
    """Which ops run, what each sweep computes, needs and leaves? Backwards, as in `rollout.weigh`."""
    live[:] = False
    kept[:] = False
    computed[:] = False
    needed[:] = False
    kept_bytes[:] = 0
    counts[:] = 0
    index = length - 1
    while index >= 0:
        t = m.sweep[seq_pos[index]]
        if t < 0:
            runs[index] = True
            index -= 1
            continue
        for s in range(live.shape[0]):
            if live[s] and m.node[s] >= 0:
                kept[t + 1, m.node[s]] = True
                kept_bytes[t + 1] += m.size[m.node[s]]
        while index >= 0 and m.sweep[seq_pos[index]] == t:
            op = seq_op[index]
            node = m.made[op]
            wanted = node < 0 or t == 0
            for i in range(a.makes0[op], a.makes0[op + 1]):
                wanted = wanted or live[a.makes[i]]
            runs[index] = wanted
            if wanted:
                counts[t] += node >= 0
                for i in range(a.makes0[op], a.makes0[op + 1]):
                    s = a.makes[i]
                    if node >= 0 and (live[s] or m.node[s] == node):
                        computed[t, m.node[s]] = True
                    live[s] = False
                for i in range(a.reads0[op], a.reads0[op + 1]):
                    s = a.reads[i]
                    live[s] = True
                    if node < 0 and m.node[s] >= 0:
                        needed[t, m.node[s]] = True
            index -= 1
        for j in range(kept.shape[1]):
            if needed[t, j] and not computed[t, j] and not kept[t + 1, j]:
                kept[t + 1, j] = True
                kept_bytes[t + 1] += m.size[j]


@compiled
def _fastest(times, spaces, first, last, room):  # type: ignore[no-untyped-def]
    """The fastest option whose workspace fits, else the leanest."""
    best = -1
    leanest = first
    for i in range(first, last):
        if spaces[i] <= room and (best < 0 or times[i] < times[best]):
            best = i
        if spaces[i] < spaces[leanest]:
            leanest = i
    return best if best >= 0 else leanest


@compiled
def _missed(m, t, node, computed, kept, needed):  # type: ignore[no-untyped-def]
    """Will anybody read this node after it was overwritten by the one that is being computed?"""
    over = m.overwrites[node]
    if kept[t + 1, over] or needed[t, over]:
        return True
    for i in range(m.users0[over], m.users0[over + 1]):
        if m.users[i] > node and computed[t, m.users[i]] and m.users[i] != over + 1:
            return True
    return False


@compiled
def _sweep(m, t, base, limit, entry, after, computed, needed, kept, chosen):  # type: ignore[no-untyped-def]
    """(time, peak) of one forward sweep. `chosen`: for each computed node the option, or -2 - option in place."""
    nodes = entry.shape[0]
    waiting = 0
    for j in range(nodes):
        if entry[j]:
            waiting += m.size[j]
    peak = done = wanted = time = 0
    placed = False
    for j in range(nodes):
        peak = max(peak, base + wanted + waiting + done)
        if entry[j]:
            waiting -= m.size[j]
        if computed[t, j]:
            resting = done
            for i in range(m.live0[j], m.live0[j + 1]):
                if after[m.live_nodes[i]]:
                    resting -= m.size[m.live_nodes[i]]
            most = base + wanted + waiting + resting + m.size[j] + m.live[j]
            room = limit - most
            if m.options0[j] == m.options0[j + 1]:
                # The smaller encoding of the op before.
                time += m.extra_place_time[j - 1] if placed else m.extra_time[j - 1]
                most += m.extra_place_space[j - 1] if placed else m.extra_space[j - 1]
            else:
                times, spaces = (m.time, m.space) if t == 0 else (m.again, m.space_again)
                option = _fastest(times, spaces, m.options0[j], m.options0[j + 1], room)
                cost, space = times[option], spaces[option]
                chosen[t, j] = option - m.options0[j]
                placed = m.overwrites[j] >= 0 and not _missed(m, t, j, computed, kept, needed)
                if placed:
                    extra = extra_placed = 0
                    if m.has_extra[j] and computed[t, j + 1]:
                        extra, extra_placed = m.extra_time[j], m.extra_place_time[j]
                    placed = space > room or m.place_time[j] + extra_placed <= cost + extra
                if placed:
                    cost, space = m.place_time[j], m.place_space[j]
                    chosen[t, j] = -2
                time += cost
                most += space
            peak = max(peak, most)
        if after[j]:
            done += m.size[j]
        elif needed[t, j]:
            wanted += m.size[j]
    return time, peak


@compiled
def weigh_sweeps(  # type: ignore[no-untyped-def]
    a,
    m,
    seq_op,
    seq_pos,
    length,
    live,
    runs,
    during,
    limit,
    kept,
    computed,
    needed,
    chosen,
    kept_bytes,
    counts,
):
    """(seconds, peak) of a rollout; what `rollout.weigh` is to the simulator's model."""
    _walk(a, m, seq_op, seq_pos, length, live, runs, kept, computed, needed, kept_bytes, counts)
    during[:] = 0
    nodes = kept.shape[1]
    total = peak = 0
    for index in range(length):
        op, position = seq_op[index], seq_pos[index]
        t = m.sweep[position]
        last = index + 1 == length or m.sweep[seq_pos[index + 1]] != t
        if t < 0 or not last:
            continue
        own = nodes - 1 + t
        base = m.fixed[own - 1] + (m.live[own] if t > 0 else 0)
        entry, after = kept[t], kept[t + 1]
        if t == 0:
            needed[0, nodes - 2] = True
        time, most = 0, base + kept_bytes[t]
        if counts[t] > 0:
            time, most = _sweep(m, t, base, limit, entry, after, computed, needed, kept, chosen)
        total += time
        if t > 0:
            held = m.fixed[own] + m.live[own] + m.size[own] + kept_bytes[t + 1]
            if counts[t] > 0:
                for j in range(nodes):
                    if needed[t, j] and not after[j]:
                        held += m.size[j]
            row = m.row[op]
            option = _fastest(m.time, m.space, m.options0[row], m.options0[row + 1], limit - held)
            chosen[t, nodes] = option - m.options0[row]
            total += m.time[option]
            most = max(most, held + m.space[option])
        during[position] = most
        peak = max(peak, most)
    return total * 1e-5, peak
