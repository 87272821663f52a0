"""What does every program certainly make, from what, and how fast at best? The facts that bounds are built on.

Found backwards from what the caller gets: an output that is certainly read is certainly made; it certainly depends on what all
the ops that can make it read. Nothing here depends on a budget or on an order.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import Flags, Lists, pack
from lowtide.solve.problem import Problem

__all__ = ["Needs", "warm_up"]

_MOST_SETS = 8
"""Beyond so many sets of an op's outputs that one maker makes, covers are not searched: the fastest single maker is the bound."""


class Needs:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.makers = _all_makers(problem)
        """For each storage every op that makes it."""
        self.along = pack([self._always_with(s) for s in range(len(self.makers))])
        """For each storage what every op that makes it makes besides."""
        self.certain = problem.finished.copy()
        self.captured = np.zeros(len(problem.storage_names), np.bool_)
        self.captured[problem.gaps.storage] = True
        self.seconds = 0.0
        """Of making once what is certainly made."""
        rows: list[tuple[int, int, list[int]]] = []
        for position in range(len(problem.order) - 1, -1, -1):
            rows += self._visit(position, int(problem.order[position]))
        rows.reverse()
        self.position = np.array([r[0] for r in rows], np.int64)
        """Of each certain output, in captured order: the position of its captured op, ..."""
        self.output = np.array([r[1] for r in rows], np.int64)
        self.reads: Lists = pack([r[2] for r in rows])
        """... and what every op that makes it reads."""

    def _visit(self, position: int, op: int) -> list[tuple[int, int, list[int]]]:
        problem = self.problem
        effect = bool(problem.effect[op])
        if effect:
            self.certain[problem.reads[op]] = True
        made = [s for s in problem.makes[op].tolist() if self.certain[s] or effect]
        if effect:
            self.seconds += float(problem.seconds[op])
        elif made:
            self.seconds += _fastest(problem, self.forms(op), set(made))
        rows = []
        for output in made:
            forms = [op] if effect else self.makers[output]
            always = sorted(set.intersection(*map(self.sources, forms)))
            self.certain[always] = True
            rows.append((position, output, always))
        return rows

    def _always_with(self, storage: int) -> list[int]:
        made = [set(self.problem.makes[m].tolist()) for m in self.makers[storage]]
        return sorted(set.intersection(*made) - {storage}) if made else []

    def forms(self, op: int) -> list[int]:
        """Every op that makes some of this op's outputs, itself among them."""
        return sorted({f for s in self.problem.makes[op].tolist() for f in self.makers[s]} | {op})

    def sources(self, op: int) -> set[int]:
        """The captured storages an op needs: for a copy that only rules make, what it is made from."""
        problem = self.problem
        found: set[int] = set()
        pending = problem.reads[op].tolist()
        while pending:
            storage = pending.pop()
            makers = self.makers[storage]
            if self.captured[storage] or len(makers) != 1:
                found.add(storage)
            else:
                pending += problem.reads[makers[0]].tolist()
        return found

    def dependent(self, position: int) -> Flags:
        """What certainly depends on the outputs of the op at this position, these included."""
        tainted = np.zeros(len(self.certain), np.bool_)
        tainted[self.problem.makes[self.problem.order[position]]] = True
        first = int(np.searchsorted(self.position, position, side="right"))
        _taint(self.output, self.reads.start, self.reads.items, first, tainted)
        return tainted

    def made_before(self, position: int) -> Flags:
        """What has certainly been made when the op at this position first runs, in whichever form."""
        found = np.zeros(len(self.certain), np.bool_)
        first, last = (
            int(np.searchsorted(self.position, position, side=s)) for s in ("left", "right")
        )
        own = [set(self.reads[row].tolist()) for row in range(first, last)]
        read = (
            set.intersection(*own) if own else set(self.sources(int(self.problem.order[position])))
        )
        found[list(read)] = True
        _ancestors(self.output, self.reads.start, self.reads.items, first, found)
        _also(self.along.start, self.along.items, found)
        # What comes from outside is not made.
        found[self.problem.arrives.items] = False
        return found

    def read_for(self, outputs: Flags) -> Flags:
        """What is certainly read to make these outputs."""
        found = np.zeros(len(self.certain), np.bool_)
        _read_for(self.output, self.reads.start, self.reads.items, outputs, found)
        return found

    def least_beside(self, op: int) -> int:
        """The fewest bytes in use while anything runs that makes some of this op's outputs."""
        problem = self.problem
        found = []
        for form in self.forms(op):
            own = np.unique(np.concatenate([problem.reads[form], problem.makes[form]]))
            over = int(problem.bytes[problem.over[form]].max(initial=0))
            found.append(int(problem.bytes[own].sum()) + int(problem.workspace[form]) - over)
        return min(found)


def warm_up() -> None:
    """Compile what is not compiled yet (once per machine), by walking over nothing."""
    none, start, flags = np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.bool_)
    _taint(none, start, none, 0, flags)
    _ancestors(none, start, none, 0, flags)
    _also(start, none, flags)
    _read_for(none, start, none, flags, flags)


def _all_makers(problem: Problem) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in problem.storage_names]
    for op in range(len(problem.op_names)):
        for s in problem.makes[op].tolist():
            found[s].append(op)
    return found


def _fastest(problem: Problem, forms: list[int], wanted: set[int]) -> float:
    """Seconds of the fastest set of forms that makes all of these."""
    cheapest: dict[frozenset[int], float] = {}
    for form in forms:
        makes = frozenset(wanted.intersection(problem.makes[form].tolist()))
        if makes:
            cheapest[makes] = min(cheapest.get(makes, np.inf), float(problem.seconds[form]))
    if len(cheapest) > _MOST_SETS:
        return min(cheapest.values())
    return min(
        sum(cheapest[makes] for makes in chosen)
        for count in range(1, len(wanted) + 1)
        for chosen in combinations(cheapest, count)
        if frozenset().union(*chosen) == wanted
    )


@compiled
def _taint(output, reads0, reads, first, tainted):  # type: ignore[no-untyped-def]
    for row in range(first, output.shape[0]):
        for i in range(reads0[row], reads0[row + 1]):
            if tainted[reads[i]]:
                tainted[output[row]] = True
                break


@compiled
def _ancestors(output, reads0, reads, first, found):  # type: ignore[no-untyped-def]
    for row in range(first - 1, -1, -1):
        if found[output[row]]:
            for i in range(reads0[row], reads0[row + 1]):
                found[reads[i]] = True


@compiled
def _also(along0, along, found):  # type: ignore[no-untyped-def]
    for storage in range(found.shape[0]):
        if found[storage]:
            for i in range(along0[storage], along0[storage + 1]):
                found[along[i]] = True


@compiled
def _read_for(output, reads0, reads, wanted, found):  # type: ignore[no-untyped-def]
    for row in range(output.shape[0]):
        if wanted[output[row]]:
            for i in range(reads0[row], reads0[row + 1]):
                found[reads[i]] = True
