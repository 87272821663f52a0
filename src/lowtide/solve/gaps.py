"""Where do storages wait, and which of these waits are open questions?

A **gap** is the time between two captured ops that touch a storage. Open are:

- gaps of what a first segment makes (activations), wherever a maker may run again at the gap's end; also their last gaps, where
  holding serves to remake others;
- the wait of a finished gradient for the end of the step: dropped, it is made at the end instead, if what it is made from is
  held so long. A gradient of a late layer can be far larger than its makings, so this lowers the floor. `delays` tells, for
  each such gap, which last gaps go with it.

A dropped storage can be made again before it is read, and be held for a while before it is dropped (`EARLY`, `UNTIL`).

Everything else is held until its last reader: remaking a gradient on its way would remake whole chains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Graph
from lowtide.ir.storages import Folded

__all__ = [
    "ANSWER",
    "DISCARD",
    "DROP",
    "EARLY",
    "HOLD",
    "NEVER",
    "UNTIL",
    "Flags",
    "Gaps",
    "Ints",
    "Lists",
    "find_gaps",
    "pack",
]

HOLD, DROP, DISCARD = 0, 1, 2
"""The answers for a gap. To `DROP` two numbers of positions may be added, shifted:"""
EARLY, UNTIL = 8, 32
"""so long before the end of the gap the storage is made again; so long after its start it is dropped at last. Together: a
small tensor is made while the large one that it is made from is still there."""
ANSWER = 3
"""The bits of the answer proper."""
NEVER = 2**31 - 1

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Lists:
    """A list of ints for each of n things, packed: the i-th is `items[start[i]:start[i + 1]]`."""

    start: Ints
    items: Ints

    def __getitem__(self, i: int) -> Ints:
        return self.items[self.start[i] : self.start[i + 1]]


def pack(rows: list[list[int]]) -> Lists:
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=start[1:])
    return Lists(start, np.array([i for r in rows for i in r], np.int64))


@dataclass(frozen=True)
class Gaps:
    """The waits of all storages, in the order they begin."""

    touches: Lists
    """For each position the storages its op reads or makes, in whichever way ..."""
    next: Ints
    """... and, packed alike, the gap that begins there."""
    storage: Ints
    start: Ints
    """Position of the op before the gap."""
    end: Ints
    """Position of the op after the gap; `NEVER` for a last gap."""
    open: Flags
    """Gaps that are open questions; the others are held, or for a last gap dropped."""
    start_state: NDArray[np.int64]
    """Keep everything: held gaps, dropped last gaps."""
    delays: Lists
    """For each gap, the last gaps to hold when it is dropped; empty but for finished gradients."""


@dataclass(frozen=True)
class Layout:
    """The captured step by numbers, as `solve/problem.py` builds it."""

    graph: Graph
    folded: Folded
    number: dict[str, int]
    """Of storages."""
    order: list[int]
    """The op at each position."""
    segment: list[int]
    """The segment of each position."""
    reads: list[list[int]]
    makes: list[list[int]]
    makers: list[list[int]]
    again: Flags
    ways: Lists
    parts: Lists

    def read_by_any_way(self, op: int) -> list[int]:
        return [s for part in self._all_parts(op) for s in self.reads[part]]

    def made_by_any_way(self, op: int) -> list[int]:
        return [s for part in self._all_parts(op) for s in self.makes[part]]

    def _all_parts(self, op: int) -> list[int]:
        return [part for way in self.ways[op].tolist() for part in self.parts[way].tolist()]

    def storages(self, names: set[str]) -> set[int]:
        return {self.number[n] for n in names if n in self.number}


def find_gaps(layout: Layout) -> Gaps:
    made = [layout.made_by_any_way(o) for o in layout.order]
    known = {s for o, all_made in zip(layout.order, made) for s in layout.reads[o] + all_made}
    touches = [
        [s for s in dict.fromkeys(layout.read_by_any_way(o) + all_made) if s in known]
        for o, all_made in zip(layout.order, made)
    ]
    storage: list[int] = []
    start: list[int] = []
    end: list[int] = []
    latest: dict[int, int] = {}
    for position, touched in enumerate(touches):
        for s in touched:
            if s in latest:
                end[latest[s]] = position
            latest[s] = len(storage)
            storage.append(s)
            start.append(position)
            end.append(NEVER)
    is_open, state, delays = _questions(layout, storage, start, end, latest)
    return Gaps(
        touches=pack(touches),
        next=np.arange(len(storage)),
        storage=np.array(storage, np.int64),
        start=np.array(start, np.int64),
        end=np.array(end, np.int64),
        open=is_open,
        start_state=state,
        delays=pack(delays),
    )


def _questions(
    layout: Layout, storage: list[int], start: list[int], end: list[int], latest: dict[int, int]
) -> tuple[Flags, NDArray[np.int64], list[list[int]]]:
    graph, segment, makers = layout.graph, layout.segment, layout.makers
    required = layout.storages({graph.storage(r.value) for r in graph.required})
    fixed = required | layout.storages(set(layout.folded.arrives))
    late = _made_late(layout)
    keep = [graph.value[name].keep for name in layout.number]
    is_open = np.zeros(len(storage), np.bool_)
    state = np.zeros(len(storage), np.int64)
    delays: list[list[int]] = [[] for _ in storage]
    for g, s in enumerate(storage):
        last = end[g] == NEVER
        # What cannot be made again waits for whoever may still read it; it weighs nothing if nobody does.
        state[g] = DISCARD if last and s not in fixed and makers[s] else HOLD
        if s in fixed or s in late or not makers[s]:
            continue
        is_open[g] = last or any(layout.again[m, segment[end[g]]] for m in makers[s])
        crosses = not last and segment[start[g]] != segment[end[g]]
        if crosses and not keep[s] and is_open[g]:
            state[g], is_open[g] = DROP, False
    waits: dict[int, list[int]] = {}
    for g, s in enumerate(storage):
        if end[g] != NEVER and s in required and s in late:
            waits.setdefault(s, []).append(g)
    for s, gaps in waits.items():
        if len(gaps) == 1:
            _open_delay(layout, required, s, gaps[0], end, latest, is_open, delays)
    return is_open, state, delays


def _made_late(layout: Layout) -> set[int]:
    """Storages made in a segment whose piece has run before: backward."""
    pieces = [s.piece for s in layout.graph.segments]
    late = {i for i, piece in enumerate(pieces) if piece in pieces[:i]}
    return {
        s
        for position, op in enumerate(layout.order)
        if layout.segment[position] in late
        for s in layout.makes[op]
    }


def _open_delay(
    layout: Layout,
    required: set[int],
    gradient: int,
    wait: int,
    end: list[int],
    latest: dict[int, int],
    is_open: Flags,
    delays: list[list[int]],
) -> None:
    """Open the wait of a finished gradient for the end, together with the last gaps of what it is made from."""
    segment = layout.segment[end[wait]]
    able = [
        m
        for m in layout.makers[gradient]
        if layout.again[m, segment]
        and required.issuperset(layout.makes[m])
        and all(s in latest for s in layout.reads[m])
    ]
    if not able:
        return
    makings = layout.reads[min(able, key=lambda m: len(layout.makes[m]))]
    is_open[wait] = True
    delays[wait] = [latest[s] for s in makings if layout.makers[s]]
    is_open[delays[wait]] = True
