"""In which order should the captured ops run? As captured, but for ops whose results the caller gets: some of them run sooner.

Autograd makes the gradient of a layer's input before that of its weight. The other way round the input is gone when its gradient comes: at that
moment one tensor less is there. So an op that makes only what the caller gets at the end moves up past ops that do not need it, as long as in
the stretch it moves through the most bytes at once, with everything kept, become fewer; or stay the same, and their sum becomes less.

Goes in: a graph. Comes out: the same graph with its ops in another order, for planners that follow the order of its ops.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.ir.graph import Graph, Op
from lowtide.ir.storages import Folded, fold

__all__ = ["sooner"]

_FARTHEST = 16
"""Ops that one may move past."""


def sooner(graph: Graph) -> Graph:
    folded = fold(graph)
    line = _Line(graph, folded)
    given = {graph.storage(r.value) for r in graph.required}
    moved = False
    for op in folded.ops:
        makes = folded.makes[op.name]
        plain = op.rerun and not op.effect and not op.rule and not op.over
        if plain and makes and given.issuperset(makes):
            moved |= line.move_up(op)
    ops = sorted(_with_views(graph, line.ops), key=lambda op: op.segment)
    return graph.with_ops(ops) if moved else graph


class _Line:
    """Captured ops that are no views, and the ops of rules among them, in the order so far."""

    def __init__(self, graph: Graph, folded: Folded) -> None:
        self.graph, self.folded = graph, folded
        self.ops = [*folded.ops]
        self.place = {op.name: i for i, op in enumerate(self.ops)}
        self.readers: dict[str, list[Op]] = {}
        """Captured ones of each storage."""
        for op in self.ops:
            for storage in () if op.rule else folded.reads[op.name]:
                self.readers.setdefault(storage, []).append(op)
        self.stay = {graph.storage(r.value) for r in graph.required} | folded.owned

    def move_up(self, op: Op) -> bool:
        """To the best place among those nearby, if that is better."""
        here = self.place[op.name]
        passed = [*self._passable(op, here)]
        best, least = here, self._weight(op, passed[::-1], 0)
        for count in range(1, len(passed) + 1):
            # Against the whole stretch, of which the first ones may stay before it.
            weight = self._weight(op, passed[::-1], count)
            if weight < least:
                best, least = self.place[passed[count - 1].name], weight
        if best == here:
            return False
        self.ops.insert(best, self.ops.pop(here))
        for i in range(best, here + 1):
            self.place[self.ops[i].name] = i
        return True

    def _passable(self, op: Op, here: int) -> Iterator[Op]:
        """Captured ops right before it that it does not need, the nearest first."""
        reads = set(self.folded.reads[op.name])
        found = 0
        for other in reversed(self.ops[:here]):
            makes = self.folded.makes[other.name]
            needed = other.effect or not reads.isdisjoint(makes)
            if needed or other.segment != op.segment or found == _FARTHEST:
                return
            if not other.rule:
                found += 1
                yield other

    def _weight(self, op: Op, stretch: list[Op], past: int) -> tuple[int, int]:
        """The most bytes at once and their sum, if it runs before the last `past` of the stretch. What is there all the time does not matter."""
        first = len(stretch) - past
        line = [*stretch[:first], op, *stretch[first:]]
        bytes_, makes = self.folded.bytes, self.folded.makes
        within = {o.name for o in line}
        touched = {s for o in line for s in (*self.folded.reads[o.name], *makes[o.name])} - self.folded.owned  # fmt: skip
        last: dict[str, int] = {}
        born: dict[str, int] = {}
        for i, one in enumerate(line):
            last |= dict.fromkeys(self.folded.reads[one.name], i)
            born |= dict.fromkeys(makes[one.name], i)
        end = len(line)
        for storage in touched:
            later = any(r.name not in within and self.place[r.name] > self.place[op.name] for r in self.readers.get(storage, ()))  # fmt: skip
            if later or storage in self.stay:
                last[storage] = end
        during = [
            sum(bytes_[s] for s in touched if born.get(s, 0) <= i <= last.get(s, born.get(s, 0)))
            + one.workspace
            for i, one in enumerate(line)
        ]
        return max(during), sum(during)


def _with_views(graph: Graph, ops: list[Op]) -> Iterator[Op]:
    """Each view right before what first reads it."""
    makers = {name: op for op in graph.ops if graph.is_view(op) for name in op.outputs}
    done: set[str] = set()

    def needed(op: Op) -> Iterator[Op]:
        for name in op.inputs:
            view = makers.get(name)
            if view is not None and view.name not in done:
                yield from needed(view)
                done.add(view.name)
                yield view

    for op in ops:
        yield from needed(op)
        yield op
    yield from (o for o in makers.values() if o.name not in done)
