"""What if the forward is cut into stretches and only what crosses a cut is kept? Chen's sqrt(n), known as "mirror".

Follows Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost" (2016), Algorithm 3: walk the
forward in order, add up the bytes that backward will want, and cut where the sum exceeds a limit b. What is alive across
a cut is kept; the rest of a stretch is recomputed when backward reaches it. With b = 0 the walk yields the bytes kept x
and the largest stretch y; good limits lie around B = sqrt(x y), and their search is a grid over [B/sqrt(2), sqrt(2) B].

Deviations, each because a baseline should be as strong as its idea allows:
- The grid goes on beyond that window by powers of two, down to B/4 and up to the whole forward: their window aims at the
  smallest memory, a budget may ask for less than that.
- The last stretch is kept, as `torch.utils.checkpoint.checkpoint_sequential` does: backward starts with it, so
  dropping it costs its time and saves no peak.
- They count with their own sum of kept bytes and largest stretch; here the simulator judges, and the fastest program
  within the budget is returned, else the one with the smallest peak.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.solve.baselines.keeping import fastest_fitting, write_program
from lowtide.solve.baselines.remaking import Remaking, remaking

__all__ = ["chen"]

_WINDOW = (2**-0.5, 2**-0.25, 1.0, 2**0.25, 2**0.5)


@dataclass(frozen=True, slots=True)
class _Link:
    """One forward storage in the line."""

    storage: str
    made: int
    """Position of its maker in the captured program."""
    last: int
    """Position of its last reader in the segment that made it."""
    bytes: int
    """What a stretch pays for it: nothing unless a later segment reads it."""


def chen(graph: Graph, budget: int) -> Program:
    way = remaking(graph)
    line = _line(way)
    choices = dict.fromkeys(_kept(line, limit) for limit in _limits(line))
    return fastest_fitting(graph, budget, [write_program(way, kept) for kept in choices])


def _line(way: Remaking) -> list[_Link]:
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, (segment, name) in enumerate(way.captured):
        for storage in way.folded.reads[name]:
            if way.made.get(storage) == segment:
                last[storage] = position
        for storage in way.folded.makes[name]:
            if storage in way.droppable:
                made.setdefault(storage, position)
    wanted = way.read_again
    return [
        _Link(s, at, last.get(s, at), way.folded.bytes[s] if s in wanted else 0)
        for s, at in made.items()
    ]


def _limits(line: list[_Link]) -> Iterator[float]:
    whole = sum(link.bytes for link in line)
    middle = sqrt(whole * max((link.bytes for link in line), default=0))
    yield 0.0
    if not middle:
        return
    yield from (middle * share for share in (0.25, 0.5, *_WINDOW))
    limit = 2 * middle
    while limit < whole:
        yield limit
        limit *= 2
    yield float(whole)


def _kept(line: list[_Link], limit: float) -> frozenset[str]:
    cuts = _cuts(line, limit)
    tail = cuts[-1] if cuts else -1
    return frozenset(k.storage for k in line if k.made > tail or _crosses(k, cuts))


def _cuts(line: list[_Link], limit: float) -> list[int]:
    """Positions after which the forward is cut; never at its end, which would leave an empty last stretch."""
    cuts: list[int] = []
    total = 0
    for link in line:
        total += link.bytes
        if total > limit and link.made < line[-1].made:
            cuts.append(link.made)
            total = 0
    return cuts


def _crosses(link: _Link, cuts: list[int]) -> bool:
    """Some cut lies after its maker and before its last reader."""
    first = bisect_left(cuts, link.made)
    return first < len(cuts) and cuts[first] < link.last
