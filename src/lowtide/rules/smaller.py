"""Smaller, approximate copies for backward (`allow=("lossy",)`).

What forward computes with is never touched: the copy is made beside it and read back once it is gone, in backward only, where it also
stands for the tensor in what is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.encoded import encoded, kept_for_later

__all__ = ["Halves", "QuarterBytes"]

_BLOCK = 256
"""Numbers that share a scale, as in `kernels/bytes.py`."""


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
