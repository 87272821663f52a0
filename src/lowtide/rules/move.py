"""Out of this memory and back (`allow=("move",)`): to the host's from an accelerator, to a file from the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.encoded import encoded, kept_for_later

__all__ = ["Move"]

_TICKET = 8
"""Bytes that stay, as in `kernels/files.py`."""


@dataclass(frozen=True)
class Move:
    name: str = "move"
    reason: str = "keeps a tensor in other memory, or in a file, until backward"
    exactness: Exactness = Exactness.MOVE
    probed: bool = False
    least: int = 2**18
    """Bytes of a tensor that is worth a trip."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for value, maker, segment in kept_for_later(graph, self.least):
            name = f"{value.name}.{self.name}d"
            ticket = Value(name, _TICKET, name, Kind.ACTIVATION, value.layer, "i64[1]")
            yield encoded(self.name, value, maker, segment, ticket)
