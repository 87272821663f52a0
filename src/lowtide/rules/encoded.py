"""What waits for backward, and how does another form of it wait in its place? For the rules that encode or move whole tensors."""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Proposal

__all__ = ["encoded", "kept_for_later"]


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
