"""Smaller, approximate copies for backward (`allow=("lossy",)`).

What forward computes with is never touched: the copy is made beside it and read back once it is gone, in backward only, where it also
stands for the tensor in what is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal

__all__ = ["Halves", "QuarterBytes", "kept_for_later"]

_BLOCK = 256
"""Numbers that share a scale, as in `kernels/bytes.py`."""


def kept_for_later(graph: Graph, least: int) -> Iterator[tuple[Value, Op, int]]:
    """Whole activations that a later segment reads: with the op that makes each, and the first segment that reads it."""
    reads: dict[str, int] = {}
    for op in graph.captured:
        for name in op.inputs:
            storage = graph.storage(name)
            maker = graph.makers[storage]
            if maker and op.segment > maker[0].segment:
                reads[storage] = min(op.segment, reads.get(storage, op.segment))
    for storage, segment in reads.items():
        value = graph.value[storage]
        if value.kind is Kind.ACTIVATION and value.bytes >= least:
            yield value, graph.makers[storage][0], segment


def encoded(rule: str, value: Value, maker: Op, segment: int, small: Value) -> Proposal:
    """A smaller value made of this one as soon as it is there, and the way back in a later segment."""
    there = Op(
        f"{small.name}.encode", "lowtide.encode", (value.name,), (small.name,), maker.segment,
        layer=maker.layer, source=maker.source, rule=rule, of=maker.name,
    )  # fmt: skip
    back = Op(
        f"{small.name}.decode", "lowtide.decode", (small.name,), (value.name,), segment,
        layer=maker.layer, source=maker.source, rule=rule, of=maker.name,
    )  # fmt: skip
    return Proposal((there, back), (small,))


@dataclass(frozen=True)
class Halves:
    name: str = "half"
    reason: str = "keeps an activation for backward in bfloat16"
    exactness: Exactness = Exactness.LOSSY
    probed: bool = False
    least: int = 2**16
    """Bytes of a tensor that is worth it."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for value, maker, segment in kept_for_later(graph, self.least):
            if value.spec.startswith("f32"):
                name = f"{value.name}.{self.name}"
                spec = value.spec.replace("f32", "bf16")
                small = Value(name, value.bytes // 2, name, Kind.ACTIVATION, value.layer, spec)
                yield encoded(self.name, value, maker, segment, small)


@dataclass(frozen=True)
class QuarterBytes:
    name: str = "int8"
    reason: str = (
        "keeps an activation for backward as a byte per number, 256 of which share a scale"
    )
    exactness: Exactness = Exactness.LOSSY
    probed: bool = False
    least: int = 2**16

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for value, maker, segment in kept_for_later(graph, self.least):
            if value.spec.startswith("f32") and value.bytes == 4 * value.elements:
                name = f"{value.name}.{self.name}"
                size = value.elements + 4 * -(-value.elements // _BLOCK)
                small = Value(name, size, name, Kind.ACTIVATION, value.layer, f"u8[{size}]")
                yield encoded(self.name, value, maker, segment, small)
