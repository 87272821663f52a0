"""Which storages does each op read and make, once views are folded away?

Memory is held by storages, so simulator and planners see the graph with views folded into their storages: an op that reads
a view reads the storage below it. The way back is the executor's: it takes a view again where it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.graph import Graph, Op

__all__ = ["Folded", "fold"]


@dataclass(frozen=True)
class Folded:
    """The graph with views folded away; everything named by storage."""

    ops: tuple[Op, ...]
    """All ops that are not views, in the graph's order."""
    reads: dict[str, tuple[str, ...]]
    makes: dict[str, tuple[str, ...]]
    bytes: dict[str, int]
    owned: frozenset[str]
    """Storages the caller holds all step long: in the base sum, never in the timeline."""
    arrives: dict[str, int]
    """Storages that come from outside but go with their last use: the segment they arrive in."""


def fold(graph: Graph) -> Folded:
    """Folded once per graph: planners ask for it thousands of times."""
    folded = graph.__dict__.get("_folded")
    if folded is None:
        folded = graph.__dict__["_folded"] = _fold(graph)
    return folded


def _fold(graph: Graph) -> Folded:
    ops = tuple(o for o in graph.ops if not graph.is_view(o))
    reads = {o.name: tuple(dict.fromkeys(graph.storage(v) for v in o.inputs)) for o in ops}
    makes = {
        o.name: tuple(dict.fromkeys(v for v in o.outputs if graph.storage(v) == v)) for o in ops
    }
    return Folded(
        ops=ops,
        reads=reads,
        makes=makes,
        bytes={v.name: v.bytes for v in graph.values if not v.is_view},
        owned=frozenset(graph.storage(o.value) for o in graph.outside if o.owned),
        arrives={graph.storage(o.value): o.since for o in graph.outside if not o.owned},
    )
