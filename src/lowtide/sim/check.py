"""Does what a program keeps obey what the user marked? Asks the simulator, so it lives beside it.

A value marked `keep=False` (the user demanded recomputation) may not cross from one segment into the next. The one
exception is a value the caller itself holds there: it exists whatever the plan does.
"""

from __future__ import annotations

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph
from lowtide.sim.memory import Timeline

__all__ = ["check_kept"]


def check_kept(timeline: Timeline) -> None:
    """Raises `GraphError` for the first storage that is kept against the user's mark."""
    graph = timeline.graph
    for segment, kept in enumerate(timeline.kept):
        marked = sorted(s for s in kept if not graph.value[s].keep)
        for storage in marked:
            if not _caller_holds(graph, storage, segment):
                here, after = graph.segments[segment].name, graph.segments[segment + 1].name
                raise GraphError(
                    f"value %{storage} ({graph.value[storage].bytes} bytes) is marked keep=False, but is kept from "
                    f"segment {segment} ({here}) into segment {segment + 1} ({after})"
                )


def _caller_holds(graph: Graph, storage: str, segment: int) -> bool:
    """Across the end of this segment."""
    return any(
        r.segment <= segment < r.until and graph.storage(r.value) == storage for r in graph.required
    )
