"""What may annealing touch, how likely, and what looks alike? The moves of one problem, for `solve/neighbours.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.gaps import NEVER, Lists, pack
from lowtide.solve.neighbours import Moves
from lowtide.solve.problem import Problem

__all__ = ["make_moves"]


def make_moves(problem: Problem) -> Moves:
    """What annealing may touch, how likely, and which gaps are each other's twins."""
    candidates = np.flatnonzero(problem.gaps.open)
    weight = np.sqrt(problem.bytes[problem.gaps.storage[candidates]].astype(np.float64)) + 1e-9
    weight[problem.gaps.end[candidates] == NEVER] *= 0.3
    own, leads = _own(problem, candidates), _leads(problem)
    kind, alike = _kinds(problem, own, leads)
    options = np.concatenate([np.diff(problem.makers.start), np.diff(problem.ways.start)])
    several = np.flatnonzero(options > 1)
    waits, arriving = _waits(problem, candidates), _arriving(problem, candidates)
    children = _children(problem)
    group_of, groups, group_ops = _groups(problem)
    return Moves(
        candidates=candidates,
        cumulative=np.cumsum(weight),
        gap_start=problem.gaps.start,
        gap_end=problem.gaps.end,
        kind=kind,
        alike0=alike.start,
        alike=alike.items,
        own0=own.start,
        own=own.items,
        leads0=leads.start,
        leads=leads.items,
        choosing=0.03 + 0.4 * len(several) / max(1, len(several) + len(candidates)),
        options=several,
        delays0=problem.gaps.delays.start,
        delays=problem.gaps.delays.items,
        delayable=np.flatnonzero(np.diff(problem.gaps.delays.start) > 0),
        storage=problem.gaps.storage,
        waits0=waits.start,
        waits=waits.items,
        arriving0=arriving.start,
        arriving=arriving.items,
        children0=children.start,
        children=children.items,
        group_of=group_of,
        group0=groups.start,
        group=groups.items,
        group_ops0=group_ops.start,
        group_ops=group_ops.items,
        backward=int(np.searchsorted(problem.segment, problem.segment.max(initial=0))),
        positions=len(problem.order),
    )


def _waits(problem: Problem, candidates: NDArray[np.int64]) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.storage_names]
    for gap in candidates[problem.gaps.end[candidates] != NEVER].tolist():
        rows[int(problem.gaps.storage[gap])].append(gap)
    return pack(rows)


def _arriving(problem: Problem, candidates: NDArray[np.int64]) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.seconds]
    for gap in candidates.tolist():
        end = int(problem.gaps.end[gap])
        if end != NEVER:
            rows[int(problem.order[end])].append(gap)
    return pack(rows)


def _children(problem: Problem) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.storage_names]
    for op in problem.order.tolist():
        if problem.again[op].any():
            for s in problem.reads[op].tolist():
                rows[s] += problem.makes[op].tolist()
    return pack(rows)


def _groups(problem: Problem) -> tuple[NDArray[np.int64], Lists, Lists]:
    """Storages that would do for the same ops, and these ops: joined op by op."""
    root = list(range(len(problem.storage_names)))

    def find(s: int) -> int:
        while root[s] != s:
            root[s] = root[root[s]]
            s = root[s]
        return s

    several = np.flatnonzero(np.diff(problem.ways.start) > 1).tolist()
    first: dict[int, int] = {}
    for op in several:
        parts = [part for way in problem.ways[op].tolist() for part in problem.parts[way].tolist()]
        read = [s for part in parts for s in problem.reads[part].tolist() if problem.makers[s].size]
        early = [s for s in read if problem.again[problem.makers[s]][:, 0].any()]
        for s in early:
            root[find(s)] = find(early[0])
            first[op] = early[0]
    numbers: dict[int, int] = {}
    group_of = np.array([numbers.setdefault(find(s), len(numbers)) for s in range(len(root))])
    storages: list[list[int]] = [[] for _ in numbers]
    for s, number in enumerate(group_of.tolist()):
        storages[number].append(s)
    ops: list[list[int]] = [[] for _ in numbers]
    for op, s in first.items():
        ops[group_of[s]].append(op)
    return group_of.astype(np.int64), pack(storages), pack(ops)


def _own(problem: Problem, candidates: NDArray[np.int64]) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.storage_names]
    for gap in candidates.tolist():
        rows[int(problem.gaps.storage[gap])].append(gap)
    return pack(rows)


def _leads(problem: Problem) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.storage_names]
    for op in np.flatnonzero(np.diff(problem.ways.start) > 1).tolist():
        parts = [part for way in problem.ways[op].tolist() for part in problem.parts[way].tolist()]
        read = [s for part in parts for s in problem.reads[part].tolist() if problem.makers[s].size]
        if read:
            rows[min(read)].append(op)
    return pack(rows)


def _kinds(problem: Problem, own: Lists, leads: Lists) -> tuple[NDArray[np.int64], Lists]:
    """A number per storage, equal for those that are made and read by the same kinds of ops; and the storages of each number."""
    graph = problem.graph
    targets = [graph.op[n].target for n in problem.op_names]
    targets += ["return"] * (len(problem.seconds) - len(targets))
    seen: dict[tuple[object, ...], int] = {}
    kinds = np.zeros(len(problem.storage_names), np.int64)
    rows: list[list[int]] = []
    for storage in range(len(kinds)):
        gaps = own[storage].tolist()
        key = (
            *(targets[m] for m in problem.makers[storage].tolist()),
            *(targets[problem.order[problem.gaps.start[g]]] for g in gaps),
            *(problem.gaps.end[g] == NEVER for g in gaps),
            *(targets[op] for op in leads[storage].tolist()),
        )
        kinds[storage] = seen.setdefault(key, len(seen))
        if kinds[storage] == len(rows):
            rows.append([])
        rows[kinds[storage]].append(storage)
    return kinds, pack(rows)
