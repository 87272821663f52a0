"""In what order do ops run, and when does each tensor go?

A `Program` is the planner's answer: for each segment, the ops in the order they run. An op may appear again; then it makes
its outputs anew. Nothing says "free": *a storage goes the moment no later op of the program, and no one outside, reads it*,
which is what the executor does and what the simulator assumes. Later readers read the newest copy, so an older one goes
after its last reader before the op ran again.

View ops are not listed: a view is taken again wherever it is read, from the storage that is there (`ir/storages.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.graph import Graph

__all__ = ["Program", "unplanned"]


@dataclass(frozen=True)
class Program:
    steps: tuple[tuple[str, ...], ...]
    """For each segment the names of the ops, in order."""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for segment, names in enumerate(self.steps):
            for name in names:
                yield segment, name

    @cached_property
    def counts(self) -> dict[str, int]:
        """How often each op runs."""
        counts: dict[str, int] = {}
        for _, name in self:
            counts[name] = counts.get(name, 0) + 1
        return counts


def unplanned(graph: Graph) -> Program:
    """Every captured op once, in the captured order: keep everything that is read later."""
    steps: list[list[str]] = [[] for _ in graph.segments]
    for op in graph.captured:
        if not graph.is_view(op):
            steps[op.segment].append(op.name)
    return Program(tuple(tuple(s) for s in steps))
