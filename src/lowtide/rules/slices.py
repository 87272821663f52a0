"""Regions that are small at their ends and big inside, computed a slice at a time, so that the inside never exists whole.

Found from what ops depend on, row by row (`Op.rows`), not from what they are called: from an op upwards, the largest tensor between it and
its makers is taken inside, as long as rows stay independent, and each time what the region reads from outside got much smaller, it is
one more way to make that op's outputs. Vocabulary projection and the gradient of its loss, attention written by hand, the first
layers of a network from the batch: they all look like this.

A convolution is such a region by itself: kernels that copy their operands into a layout of their own need that much less memory. And as
rows are done with one slice after another, the result can be written over what it was made from.

A parameter's gradient is a sum over rows. By slices it is added in another order, which is another rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.convolution import parameter_gradients
from lowtide.rules.in_place import writable

__all__ = ["Slices", "SummedSlices"]

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
_EXACT, _SUMMED = "slices", "summed"


@dataclass(frozen=True)
class Slices:
    name: str = _EXACT
    reason: str = "computes a region that is small at its ends in slices, so that its inside never exists whole"
    exactness: Exactness = Exactness.EXACT
    probed: bool = True
    least: int = 2**18
    """Bytes below which an op is not worth a loop."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in _large(graph, self.least):
            if op.target == _GRADIENT and len(op.inputs) >= 3:
                yield from self.gradient(graph, op)
            sink = replace(op, rows=op.inputs[:2]) if op.target == _LOSS else op
            if sink.rows:
                for number, region in enumerate(_regions(graph, sink)):
                    yield from _sliced(self.name, op, region, op.outputs, number)

    def gradient(self, graph: Graph, op: Op) -> Iterator[Proposal]:
        """Of a convolution's input, by itself; it does not ask for the input."""
        gradient, given, weight = op.inputs[:3]
        if len(op.outputs) > 1 and graph.value[op.outputs[0]].spec == graph.value[given].spec:
            region = _Region(graph, replace(op, inputs=(gradient, weight), rows=(gradient,)))
            yield from _sliced(self.name, op, region, op.outputs[:1], 0)


@dataclass(frozen=True)
class SummedSlices:
    name: str = _SUMMED
    reason: str = "adds a parameter's gradient up slice by slice, so that what it is made from never exists whole"
    exactness: Exactness = Exactness.ROUNDING
    probed: bool = False
    least: int = 2**18
    """Bytes below which an op is not worth a loop."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in _large(graph, self.least):
            found = _summed(graph, op)
            if found is not None:
                sink, made = found
                for number, region in enumerate(_regions(graph, sink)):
                    yield from _sliced(self.name, op, region, made, number)


def _summed(graph: Graph, op: Op) -> tuple[Op, tuple[str, ...]] | None:
    """The op as one that adds over the rows of two inputs, and what it makes so."""
    if op.target == _GRADIENT and len(op.inputs) >= 3:
        made = parameter_gradients(graph, op)
        return (replace(op, inputs=op.inputs[:3], rows=op.inputs[:2]), made) if made else None
    if op.target == "aten.mm.default" and len(op.inputs) == 2:
        turned, other = op.inputs
        maker = graph.makers[turned][0] if graph.makers[turned] else None
        if maker is not None and maker.target == "aten.t.default":
            pair = (maker.inputs[0], other)
            return replace(op, inputs=pair, rows=pair), op.outputs
    return None


def _large(graph: Graph, least: int) -> list[Op]:
    """The ops that are worth it."""
    ops = [o for o in graph.captured if o.rerun and not graph.is_view(o)]
    size = {o.name: graph.bytes_of((*o.inputs, *o.outputs)) for o in ops}
    most = max(size.values(), default=0)
    return [o for o in ops if size[o.name] >= max(most / _WORTH, least)]


def _sliced(
    rule: str, op: Op, region: _Region, made: tuple[str, ...], number: int
) -> Iterator[Proposal]:
    by_rows = rule == _EXACT and len(made) == 1
    for count in _counts(region.rows):
        yield Proposal((
            replace(
                op, name=f"{op.name}.{rule}{number or ''}_{count}", target=f"lowtide.{rule}.{count}",
                inputs=tuple(region.reads), outputs=made, rule=rule, of=op.name,
                over=writable(region.graph, region.done_with, made[0]) if by_rows else (),
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
    def done_with(self) -> list[str]:
        """What is read by rows, and by no other name: a slice of it is not read again."""
        names = [self.graph.storage(n) for n in self.reads]
        return [n for n in self.by_rows if names.count(self.graph.storage(n)) == 1]

    @property
    def rows(self) -> set[int]:
        """How many there are, in all that goes by rows; the last op has as many as what it reads."""
        return {self.graph.value[name].shape[0] for op in self.ops for name in op.rows}

    @property
    def weight(self) -> int:
        """Bytes that must be there for it, besides what is always there."""
        return self.graph.bytes_of(n for n in self.reads if not _always_there(self.graph, n))

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
    if sink.target in (_CONVOLUTION, _GRADIENT):
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
