"""What may annealing touch, how likely, and what looks alike? The moves of one problem, for `solve/neighbours.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.gaps import NEVER, Lists, pack
from lowtide.solve.neighbours import Moves
from lowtide.solve.problem import Problem

__all__ = ["make_moves"]

_WAYS = 1000
"""More than any op has ways."""


def make_moves(problem: Problem) -> Moves:
    """What annealing may touch, how likely, and which gaps are each other's twins."""
    candidates = np.flatnonzero(problem.gaps.open)
    weight = np.sqrt(problem.bytes[problem.gaps.storage[candidates]].astype(np.float64)) + 1e-9
    weight[problem.gaps.end[candidates] == NEVER] *= 0.3
    shape = _shapes(problem)
    options = np.concatenate([np.diff(problem.makers.start), np.diff(problem.ways.start)])
    several = np.flatnonzero(options > 1)
    waits, arriving = _waits(problem, candidates), _arriving(problem, candidates)
    children, serves = _children(problem), _serves(problem)
    return Moves(
        candidates=candidates,
        cumulative=np.cumsum(weight),
        gap_start=problem.gaps.start,
        gap_end=problem.gaps.end,
        twin=_twins(shape),
        shape=shape,
        choosing=0.03 + 0.15 * len(several) / max(1, len(several) + len(candidates)),
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
        serves0=serves.start,
        serves_op=serves.items // _WAYS,
        serves_way=serves.items % _WAYS,
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


def _serves(problem: Problem) -> Lists:
    rows: list[list[int]] = [[] for _ in problem.storage_names]
    for op in np.flatnonzero(np.diff(problem.ways.start) > 1).tolist():
        for number, way in enumerate(problem.ways[op].tolist()):
            read = {s for part in problem.parts[way] for s in problem.reads[part].tolist()}
            for s in read:
                rows[s].append(op * _WAYS + number)
    return pack(rows)


def _shapes(problem: Problem) -> NDArray[np.int64]:
    """A number per gap, equal for gaps that look alike: same kind of op before and after, same bytes. Closed gaps: -1."""
    graph = problem.graph
    targets = [graph.op[n].target for n in problem.op_names]
    targets += ["return"] * (len(problem.seconds) - len(targets))
    seen: dict[tuple[object, ...], int] = {}
    shape = np.full(len(problem.gaps.storage), -1, np.int64)
    for g in range(len(shape)):
        if not problem.gaps.open[g]:
            continue
        end = problem.gaps.end[g]
        key = (
            targets[problem.order[problem.gaps.start[g]]],
            targets[problem.order[end]] if end != NEVER else "",
            int(problem.bytes[problem.gaps.storage[g]]),
        )
        shape[g] = seen.setdefault(key, len(seen))
    return shape


def _twins(shape: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each gap the next one of the same shape, in a ring."""
    twin = np.arange(len(shape))
    rings: dict[int, list[int]] = {}
    for g, s in enumerate(shape.tolist()):
        if s >= 0:
            rings.setdefault(s, []).append(g)
    for ring in rings.values():
        for g, following in zip(ring, ring[1:] + ring[:1], strict=True):
            twin[g] = following
    return twin
