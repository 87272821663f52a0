"""Regions that are small at their ends and big inside, computed a slice at a time, so that the inside never exists whole.

Found from what ops depend on, row by row (`Op.rows`), not from what they are called: from an op upwards, the largest tensor between it and
its makers is taken inside, as long as rows stay independent, and each time what the region reads from outside got much smaller, it is
one more way to make that op's outputs. Vocabulary projection and the gradient of its loss, attention written by hand, the first
layers of a network from the batch: they all look like this.

A convolution is such a region by itself: kernels that copy their operands into a layout of their own need that much less memory. And as
rows are done with one slice after another, the result can be written over what it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["Slices"]

_WORTH = 6
"""For the ops that make the peak: with at least this part of the largest one's bytes."""
_COUNTS = (4, 16)
"""About so many slices."""
_SMALLER = 0.6
"""What a region reads, by what it read before it was made larger."""
_MOST = 24
"""Ops in a region, views not counted."""
_CONVOLUTION = "aten.convolution.default"
_LOSS = "aten.nll_loss_forward.default"
"""Reads one number of each row."""
_GRADIENT = "aten.convolution_backward.default"


@dataclass(frozen=True)
class Slices:
    name: str = "slices"
    reason: str = "computes a region that is small at its ends in slices, so that its inside never exists whole"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True
    least: int = 2**18
    """Bytes below which an op is not worth a loop."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        sinks = [o for o in graph.captured if o.rerun and not graph.is_view(o)]
        most = max((_bytes(graph, (*o.inputs, *o.outputs)) for o in sinks), default=0)
        for op in sinks:
            if _bytes(graph, (*op.inputs, *op.outputs)) < max(most / _WORTH, self.least):
                continue
            if op.target == _GRADIENT:
                yield from self.gradient(graph, op)
            sink = replace(op, rows=op.inputs[:2]) if op.target == _LOSS else op
            if sink.rows:
                for number, region in enumerate(_regions(graph, sink)):
                    yield from self.sliced(op, region, op.outputs, number)

    def gradient(self, graph: Graph, op: Op) -> Iterator[Proposal]:
        """Of a convolution's input, by itself; it does not ask for the input."""
        gradient, given, weight = op.inputs[:3]
        if len(op.outputs) > 1 and graph.value[op.outputs[0]].spec == graph.value[given].spec:
            region = _Region(graph, replace(op, inputs=(gradient, weight), rows=(gradient,)))
            yield from self.sliced(op, region, op.outputs[:1], 0)

    def sliced(
        self, op: Op, region: _Region, made: tuple[str, ...], number: int
    ) -> Iterator[Proposal]:
        for count in _counts(region.rows):
            yield Proposal((
                replace(
                    op, name=f"{op.name}.slices{number or ''}_{count}", target=f"lowtide.slices.{count}",
                    inputs=tuple(region.reads), outputs=made, rule=self.name, of=op.name, rows=(),
                    over=writable(region.graph, region.by_rows, made[0]) if len(made) == 1 else (),
                ),
            ))  # fmt: skip


class _Region:
    """Ops that end in one, and what they read from outside."""

    def __init__(self, graph: Graph, sink: Op) -> None:
        self.graph = graph
        self.ops = [sink]

    def copy(self) -> _Region:
        twin = _Region(self.graph, self.ops[0])
        twin.ops = [*self.ops]
        return twin

    @property
    def reads(self) -> dict[str, None]:
        inside = {name for op in self.ops for name in op.outputs}
        return dict.fromkeys(n for op in self.ops for n in op.inputs if n not in inside)

    @property
    def by_rows(self) -> dict[str, None]:
        """What is read from outside, by rows only."""
        reads = self.reads
        whole = {n for op in self.ops for n in op.inputs if n not in op.rows}
        return dict.fromkeys(n for op in self.ops for n in op.rows if n in reads and n not in whole)

    @property
    def rows(self) -> set[int]:
        """How many there are, in all that goes by rows; the last op has as many as what it reads."""
        return {self.graph.value[name].shape[0] for op in self.ops for name in op.rows}

    @property
    def weight(self) -> int:
        """Bytes that must be there for it, besides what is always there."""
        return _bytes(self.graph, (n for n in self.reads if not _always_there(self.graph, n)))

    def grow(self) -> bool:
        """Take the largest tensor inside that can be."""
        graph = self.graph
        near = [n for n in self.by_rows if not _always_there(graph, n)]
        for name in sorted(near, key=lambda n: -graph.value[graph.storage(n)].bytes):
            maker = graph.makers[name][0] if graph.makers[name] else None
            if maker is not None and maker.rows and maker.rerun and not maker.effect:
                self.ops.append(maker)
                return True
        return False


def _regions(graph: Graph, sink: Op) -> Iterator[_Region]:
    region = _Region(graph, sink)
    least = region.weight
    if sink.target == _CONVOLUTION:
        yield region.copy()
    for _ in range(4 * _MOST):
        if not region.grow():
            return
        if sum(not graph.is_view(o) for o in region.ops) > _MOST:
            return
        if region.weight <= _SMALLER * least:
            least = region.weight
            yield region.copy()
            if least == 0:
                return


def _counts(rows: set[int]) -> list[int]:
    """Numbers of equal slices of all these, near what we want."""
    common = math.gcd(*rows)
    divisors = [d for d in range(2, min(common, 64) + 1) if common % d == 0]
    return sorted({min(divisors, key=lambda d: abs(math.log(d / n))) for n in _COUNTS if divisors})


def _always_there(graph: Graph, name: str) -> bool:
    outside = graph.exists_outside.get(graph.storage(name))
    return outside is not None and outside.owned


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(graph.value[s].bytes for s in {graph.storage(n) for n in names})
