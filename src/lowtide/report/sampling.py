"""What does a picture of so many columns show of a step? The highest moment of each column, and what lives at it.

Goes in: a `Step` with perhaps a hundred thousand blocks. Comes out: a `Sampled` step of a few hundred instants, whatever the step's
size: no peak is lost, however short, and what is too small to be seen is in the sums of its kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from lowtide.plan.folding import Folded, fold_layers
from lowtide.plan.profile import Block
from lowtide.report.kinds import in_order
from lowtide.report.steps import Running, Step

__all__ = ["Holding", "Instant", "Sampled", "fold_all", "sample"]

_ROWS = 10
"""How many rows of an instant are told one by one."""
_DEPTH = 99
"""Layers are folded to their whole path."""

Key = tuple[str, str]
"""A layer, or a folded one, and a kind."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What layers that are one after folding hold of one kind."""

    layer: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Instant:
    column: int
    """The first of the columns that it stands for; the next instant's is the first of the others."""
    seconds: float
    total: int
    kinds: tuple[int, ...]
    """Bytes of each of the step's kinds."""
    holdings: tuple[Holding, ...]
    """The largest; the others are in the sums of their kinds."""
    running: Running | None


@dataclass(frozen=True)
class Sampled:
    step: Step
    kinds: tuple[str, ...]
    """As they are stacked."""
    columns: int
    """Of the picture that it takes."""
    instants: tuple[Instant, ...]
    top: int
    """Index of the instant with the most bytes."""
    at_peak: tuple[Block, ...]
    """What lives at that instant."""


def fold_all(steps: Sequence[Step]) -> tuple[Folded, ...]:
    """The layers of these steps, repeated ones folded: the rows of all their tables."""
    return fold_layers(((b.layer, b.bytes) for s in steps for b in s.blocks), depth=_DEPTH)


def sample(step: Step, folded: Sequence[Folded], *, span: float, columns: int) -> Sampled:
    """`span` is how many seconds the whole picture shows."""
    names = {layer: row.name for row in folded for layer in row.layers}
    kinds = in_order(block.kind for block in step.blocks)
    times, totals = _totals(step.blocks)
    chosen = list(_highest(times, totals, columns / span if span > 0 else 1.0, columns))
    instants = []
    starts = [running.start for running in step.running]
    for column, index, alive in _alive_at(step.blocks, times, chosen, names):
        place = bisect_right(starts, times[index]) - 1
        running = step.running[place] if place >= 0 else None
        instants.append(_instant(column, times[index], alive, kinds, running))
    top = max(range(len(instants)), key=lambda i: instants[i].total, default=-1)
    then = instants[top].seconds if instants else 0.0
    at_peak = tuple(b for b in step.blocks if b.start <= then < b.end)
    taken = max(1, round(columns * step.seconds / span)) if span > 0 else columns
    return Sampled(step, kinds, min(columns, taken), tuple(instants), top, at_peak)


def _totals(blocks: Sequence[Block]) -> tuple[list[float], list[int]]:
    """The seconds at which something changes, and the bytes from each on."""
    changes: Counter[float] = Counter()
    for block in blocks:
        changes[block.start] += block.bytes
        changes[block.end] -= block.bytes
    times = sorted(changes)
    return times[:-1], list(accumulate(changes[t] for t in times[:-1]))


def _highest(
    times: Sequence[float], totals: Sequence[int], scale: float, columns: int
) -> Iterator[tuple[int, int]]:
    """(first column, index of the time) of the highest moment of each column, columns with the same moment as one."""
    best: dict[int, int] = {}
    for index, start in enumerate(times):
        end = times[index + 1] if index + 1 < len(times) else start
        first, last = int(start * scale), ceil(end * scale) - 1
        for column in range(min(first, columns - 1), min(max(first, last), columns - 1) + 1):
            if column not in best or totals[index] > totals[best[column]]:
                best[column] = index
    before = -1
    for column, index in sorted(best.items()):
        if index != before:
            yield column, index
        before = index


def _alive_at(
    blocks: Sequence[Block],
    times: Sequence[float],
    chosen: Sequence[tuple[int, int]],
    names: Mapping[str, str],
) -> Iterator[tuple[int, int, Counter[Key]]]:
    """For each chosen moment, in the order of time, what lives then: by the layers' names, and kind. The counter is the same one
    each time."""
    comes = sorted(blocks, key=lambda block: block.start)
    goes = sorted(blocks, key=lambda block: block.end)
    alive: Counter[Key] = Counter()

    def key(block: Block) -> Key:
        return names.get(block.layer, block.layer), block.kind

    come = go = 0
    for column, index in sorted(chosen, key=lambda pair: pair[1]):
        while come < len(comes) and comes[come].start <= times[index]:
            alive[key(comes[come])] += comes[come].bytes
            come += 1
        while go < len(goes) and goes[go].end <= times[index]:
            alive[key(goes[go])] -= goes[go].bytes
            go += 1
        yield column, index, alive


def _instant(
    column: int,
    seconds: float,
    alive: Counter[Key],
    kinds: Sequence[str],
    running: Running | None,
) -> Instant:
    by_kind: Counter[str] = Counter()
    for (_, kind), size in alive.items():
        by_kind[kind] += size
    return Instant(
        column,
        seconds,
        by_kind.total(),
        tuple(by_kind[kind] for kind in kinds),
        tuple(Holding(layer, kind, n) for (layer, kind), n in alive.most_common(_ROWS) if n),
        running,
    )
