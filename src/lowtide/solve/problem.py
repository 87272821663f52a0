"""What does the planner decide on? The graph as arrays, and the list of open questions.

The captured ops run in their captured order; between them, tensors wait. Each wait of a storage, from one captured op that
touches it to the next, is a **gap**, and for each gap there is one question: *hold* the storage through it, *drop* it and make
it again when it is next read (and if something else needs it remade earlier, hold that copy), or *drop* it and discard
such early copies too. A storage's last gap has no reader at its end; holding it there only serves to remake others.

That is all: recomputation just in time, repeated recomputation, late making (an op whose outputs are dropped before
anybody reads them does not run at all) and partial retention are answers to these questions. `Problem` lists them, with
views folded away, for `solve/rollout.py` to run and `solve/search.py` to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Graph, Op, home_segment
from lowtide.ir.program import Program
from lowtide.ir.storages import Folded, fold

__all__ = ["DISCARD", "DROP", "HOLD", "Problem", "make_problem"]

HOLD, DROP, DISCARD = 0, 1, 2
"""The answers for a gap."""

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
NEVER = 2**31 - 1


@dataclass(frozen=True)
class Lists:
    """A list of ints for each of n things, packed: the i-th is `items[start[i]:start[i + 1]]`."""

    start: Ints
    items: Ints

    def __getitem__(self, i: int) -> Ints:
        return self.items[self.start[i] : self.start[i + 1]]


def _pack(rows: list[list[int]]) -> Lists:
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=start[1:])
    return Lists(start, np.array([i for r in rows for i in r], np.int64))


@dataclass(frozen=True)
class Gaps:
    """The waits of all storages, in the order they begin."""

    touches: Lists
    """For each position the storages its op reads or makes ..."""
    next: Ints
    """... and, packed alike, the gap that begins there."""
    storage: Ints
    start: Ints
    """Position of the op before the gap."""
    end: Ints
    """Position of the op after the gap; `NEVER` for a last gap."""
    open: Flags
    """Gaps that are open questions; the others are held, or for a last gap dropped."""
    start_state: NDArray[np.int8]
    """Keep everything: held gaps, dropped last gaps."""


@dataclass(frozen=True)
class Problem:
    """Ops and storages by number. Storages the caller owns are not here: they are in `base_bytes`."""

    graph: Graph
    op_names: tuple[str, ...]
    storage_names: tuple[str, ...]
    base_bytes: int
    bytes: Ints
    seconds: NDArray[np.float64]
    workspace: Ints
    effect: Flags
    reads: Lists
    makes: Lists
    makers: Lists
    """For each storage the ops that may make it again, the captured one first."""
    again: Flags
    """[op, segment]: may this op run there once more?"""
    order: Ints
    """The captured ops, in order."""
    segment: Ints
    """The segment of each position in `order`."""
    let_go: Lists
    """For each segment the storages the caller lets go of at its end."""
    arrives: Lists
    """For each segment the storages that come from outside at its start."""
    gaps: Gaps

    @property
    def captured_seconds(self) -> float:
        return float(self.seconds[self.order].sum())

    @cached_property
    def storage_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.storage_names)}

    def program(self, positions: Ints, ops: Ints) -> Program:
        """The `Program` of a rollout: op numbers, each with the position of the captured op it runs for."""
        steps: list[list[str]] = [[] for _ in self.graph.segments]
        for position, op in zip(positions.tolist(), ops.tolist(), strict=True):
            steps[int(self.segment[position])].append(self.op_names[op])
        return Program(tuple(tuple(s) for s in steps))


def make_problem(graph: Graph) -> Problem:
    folded = fold(graph)
    storages = [v.name for v in graph.values if not v.is_view and v.name not in folded.owned]
    number = {name: i for i, name in enumerate(storages)}
    ops = folded.ops
    op_number = {o.name: i for i, o in enumerate(ops)}

    def numbers(names: tuple[str, ...]) -> list[int]:
        return [number[s] for s in names if s in number]

    reads = [numbers(folded.reads[o.name]) for o in ops]
    makes = [numbers(folded.makes[o.name]) for o in ops]
    held = _held(graph)
    again = np.array(
        [[_may_run_again(graph, held, o, s) for s in range(len(graph.segments))] for o in ops],
        np.bool_,
    ).reshape(len(ops), len(graph.segments))
    makers: list[list[int]] = [[] for _ in storages]
    for i, made in enumerate(makes):
        if again[i].any():
            for s in made:
                makers[s].append(i)
    order = [op_number[o.name] for o in ops if not o.rule]
    return Problem(
        graph=graph,
        op_names=tuple(o.name for o in ops),
        storage_names=tuple(storages),
        base_bytes=sum(graph.held.values()) + sum(folded.bytes[s] for s in folded.owned),
        bytes=np.array([folded.bytes[s] for s in storages], np.int64),
        seconds=np.array([o.seconds for o in ops], np.float64),
        workspace=np.array([o.workspace for o in ops], np.int64),
        effect=np.array([o.effect for o in ops], np.bool_),
        reads=_pack(reads),
        makes=_pack(makes),
        makers=_pack(makers),
        again=again,
        order=np.array(order, np.int64),
        segment=np.array([ops[i].segment for i in order], np.int64),
        let_go=_pack(_let_go(graph, number)),
        arrives=_pack(
            [
                [number[s] for s, since in folded.arrives.items() if since == segment]
                for segment in range(len(graph.segments))
            ]
        ),
        gaps=_gaps(graph, folded, order, reads, makes, makers, again, number),
    )


def _held(graph: Graph) -> dict[str, tuple[int, int]]:
    """For each storage the caller gets, the segment it gets it in and the one it lets go of it in."""
    return {graph.storage(r.value): (r.segment, r.until) for r in graph.required}


def _may_run_again(graph: Graph, held: dict[str, tuple[int, int]], op: Op, segment: int) -> bool:
    """Legal there, and everything it reads from outside still exists there."""
    if not op.rerun or not home_segment(graph, op, segment):
        return False
    for name in op.inputs:
        outside = graph.exists_outside.get(graph.storage(name))
        if outside is not None and not outside.since <= segment <= outside.until:
            return False
    # The caller still holds the first copy there; a second one beside it is never worth having.
    return not any(
        lo < segment <= hi for lo, hi in (held.get(o, (segment, segment)) for o in op.outputs)
    )


def _let_go(graph: Graph, number: dict[str, int]) -> list[list[int]]:
    last = len(graph.segments) - 1
    found: list[list[int]] = [[] for _ in graph.segments]
    for required in graph.required:
        storage = graph.storage(required.value)
        if storage in number:
            found[min(required.until, last)].append(number[storage])
    return [list(dict.fromkeys(f)) for f in found]


def _gaps(
    graph: Graph,
    folded: Folded,
    order: list[int],
    reads: list[list[int]],
    makes: list[list[int]],
    makers: list[list[int]],
    again: Flags,
    number: dict[str, int],
) -> Gaps:
    touches = [list(dict.fromkeys(reads[o] + makes[o])) for o in order]
    storage: list[int] = []
    start: list[int] = []
    end: list[int] = []
    next_gap: list[int] = []
    latest: dict[int, int] = {}
    for position, touched in enumerate(touches):
        for s in touched:
            if s in latest:
                end[latest[s]] = position
            latest[s] = len(storage)
            next_gap.append(len(storage))
            storage.append(s)
            start.append(position)
            end.append(NEVER)
    segment = [folded.ops[o].segment for o in order]
    fixed = {number[s] for s in folded.arrives} | {
        number[graph.storage(r.value)] for r in graph.required if graph.storage(r.value) in number
    }
    last_segment = len(graph.segments) - 1
    is_open = np.zeros(len(storage), np.bool_)
    state = np.zeros(len(storage), np.int8)
    # What the last segment makes, gradients on their way, is held until its last reader: remaking it remakes whole chains.
    made_last = {
        s for position, o in enumerate(order) if segment[position] == last_segment for s in makes[o]
    }
    for g, s in enumerate(storage):
        last = end[g] == NEVER
        # What cannot be made again waits for whoever may still read it; it weighs nothing if nobody does.
        state[g] = DISCARD if last and s not in fixed and makers[s] else HOLD
        if s in fixed or s in made_last or not makers[s]:
            continue
        is_open[g] = last or any(again[m, segment[end[g]]] for m in makers[s])
    keep = np.array([graph.value[name].keep for name in number], np.bool_)
    for g, s in enumerate(storage):
        crosses = end[g] != NEVER and segment[start[g]] != segment[end[g]]
        if crosses and not keep[s] and is_open[g]:
            state[g], is_open[g] = DROP, False
    return Gaps(
        touches=_pack(touches),
        next=np.array(next_gap, np.int64),
        storage=np.array(storage, np.int64),
        start=np.array(start, np.int64),
        end=np.array(end, np.int64),
        open=is_open,
        start_state=state,
    )
