"""Where are the bytes, at one moment and over the whole step? The numbers behind every memory table and stacked
picture.

Goes in: a `Timeline`. Comes out: rows by kind and layer for one moment (`breakdown`), or one column per kind over
all moments (`by_kind`). Both add up to what the simulator says the moment takes, to the byte.

Kinds are those of `ir.graph.Kind` and two more: the workspace of the running op, and what an earlier segment made
that is still there, which is what people mean by activations kept for backward. Gradients stay gradients wherever
they were made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind, Value
from lowtide.sim.memory import Copy, Timeline

__all__ = ["KEPT", "WORKSPACE", "Row", "base_of", "breakdown", "by_kind"]

KEPT = "activation kept"
WORKSPACE = "op workspace"


@dataclass(frozen=True, slots=True)
class Row:
    kind: str
    layer: str
    bytes: int


def breakdown(timeline: Timeline, moment: int) -> tuple[Row, ...]:
    """What exists while this moment's op runs, largest first."""
    graph, now = timeline.graph, timeline.moments[moment]
    slot = timeline.slot(moment)
    found = base_of(graph)
    for copy in timeline.copies:
        if copy.born <= slot <= copy.last:
            value = graph.value[copy.storage]
            found[_kind(graph, copy, now.segment), value.layer] += value.bytes
    op = graph.op[now.op]
    found[WORKSPACE, op.layer] += op.workspace
    rows = [Row(kind, layer, size) for (kind, layer), size in found.items() if size]
    return tuple(sorted(rows, key=lambda r: (-r.bytes, r.kind, r.layer)))


def by_kind(timeline: Timeline) -> dict[str, tuple[int, ...]]:
    """For each kind that ever weighs anything, its bytes while each moment's op runs."""
    graph, moments = timeline.graph, timeline.moments
    firsts = _first_moments(timeline)
    changes: dict[str, list[int]] = defaultdict(lambda: [0] * (len(moments) + 1))

    def add(kind: str, first: int, end: int, size: int) -> None:
        column = changes[kind]
        column[first] += size
        column[end] -= size

    for (kind, _), size in base_of(graph).items():
        add(kind, 0, len(moments), size)
    for copy in timeline.copies:
        size = graph.value[copy.storage].bytes
        for segment, first, end in _stays(copy, firsts):
            add(_kind(graph, copy, segment), first, end, size)
    for index, moment in enumerate(moments):
        add(WORKSPACE, index, index + 1, graph.op[moment.op].workspace)
    columns = {kind: _running_sums(column) for kind, column in changes.items()}
    return {kind: column for kind, column in columns.items() if any(column)}


def base_of(graph: Graph) -> Counter[tuple[str, str]]:
    """What the caller holds all step long: bytes by kind and layer."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, size in graph.held.items():
        found[str(kind), ""] += size
    for name in dict.fromkeys(graph.storage(o.value) for o in graph.outside if o.owned):
        value = graph.value[name]
        found[value.kind.value, value.layer or _owner(graph, value)] += value.bytes
    return found


def _owner(graph: Graph, value: Value) -> str:
    """The layer of a parameter or buffer that says none: of the first op that reads it."""
    if value.kind not in (Kind.PARAMETER, Kind.BUFFER):
        return ""
    return next((op.layer for op in graph.users[value.name] if op.layer), "")


def _kind(graph: Graph, copy: Copy, segment: int) -> str:
    kind = graph.value[copy.storage].kind
    made_earlier = copy.segment < segment and copy.storage not in graph.exists_outside
    return KEPT if made_earlier and kind is not Kind.GRADIENT else kind.value


def _first_moments(timeline: Timeline) -> list[int]:
    """Index of the first moment of each segment, and the number of moments."""
    firsts = [0]
    for names in timeline.program.steps:
        firsts.append(firsts[-1] + len(names))
    return firsts


def _stays(copy: Copy, firsts: list[int]) -> list[tuple[int, int, int]]:
    """For each segment the copy exists in: the segment, its first moment there and the one after its last."""
    found = []
    for segment in range(copy.segment, len(firsts) - 1):
        before = 2 * segment + 1
        first = max(copy.born - before, firsts[segment])
        end = min(copy.last - before + 1, firsts[segment + 1])
        if copy.last < firsts[segment] + 2 * segment:
            break
        if first < end:
            found.append((segment, first, end))
    return found


def _running_sums(changes: list[int]) -> tuple[int, ...]:
    found, now = [], 0
    for change in changes[:-1]:
        now += change
        found.append(now)
    return tuple(found)
