"""What did the plan do to each layer, and why? Kept, recomputed, encoded, inverted, or run by another implementation.

Goes in: a `Plan`. Comes out: a row for each layer, repeated ones folded, with the ops behind it and the reasons in words. The seconds of
all rows add up to what the planned step takes longer than the unplanned one.

What an op of a rule stands for is read off the graph, not off the rule's name: one that makes or reads what a rule keeps instead of a
tensor encodes; one that makes an op's input from its output inverts; one that makes a tensor of an earlier segment recomputes; any other
is another implementation of its captured op.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lowtide.ir.graph import Graph, Kind, Op
from lowtide.plan.folding import fold_layers
from lowtide.plan.plan import Plan
from lowtide.report.steps import only_rules_make
from lowtide.rules import DEFAULT_RULES

__all__ = ["ENCODE", "INSTEAD", "INVERT", "KEEP", "OTHER", "RECOMPUTE", "WAYS", "WORK", "Change", "Detail", "Tally", "changes"]  # fmt: skip

KEEP, RECOMPUTE, ENCODE, INVERT, OTHER = WAYS = (
    "kept", "recomputed", "encoded", "inverted", "other implementation",
)  # fmt: skip
WORK = "encoding work"
INSTEAD = "left out"
_REASONS = {
    KEEP: "held from forward to backward",
    RECOMPUTE: "run again from what was kept",
    INSTEAD: "not run: another form of it is",
}
_DEPTH = 99


@dataclass(frozen=True, slots=True)
class Tally:
    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """Ops of one row that are alike."""

    way: str
    op: str
    reason: str
    count: int
    bytes: int
    """Kept for backward, or made again."""
    seconds: float


@dataclass(frozen=True)
class Change:
    layer: str
    ways: Mapping[str, Tally]
    """For each of `WAYS` that was used, how many tensors or ops and how many bytes."""
    seconds: float
    """That the layer takes longer than without a plan."""
    details: tuple[Detail, ...]


@dataclass
class _Row:
    ways: dict[str, Tally] = field(default_factory=dict)
    details: dict[tuple[str, str, str], Detail] = field(default_factory=dict)

    def add(self, found: Detail) -> None:
        key = (found.way, found.op, found.reason)
        old = self.details.get(key, Detail(*key, 0, 0, 0.0))
        count, size = old.count + found.count, old.bytes + found.bytes
        self.details[key] = Detail(*key, count, size, old.seconds + found.seconds)
        if found.way in WAYS:
            tally = self.ways.get(found.way, Tally())
            self.ways[found.way] = Tally(tally.count + found.count, tally.bytes + found.bytes)


def changes(plan: Plan) -> tuple[Change, ...]:
    """The layers of which something was asked, those that take the most time or memory first."""
    found = [*_kept(plan), *_run(plan)]
    names = {
        layer: row.name
        for row in fold_layers(((layer, 0) for layer, _ in found), depth=_DEPTH)
        for layer in row.layers
    }
    rows: dict[str, _Row] = defaultdict(_Row)
    for layer, detail in found:
        rows[names[layer]].add(detail)
    made = [_change(name, row) for name, row in rows.items()]
    return tuple(sorted(made, key=lambda c: (-c.seconds, -_bytes(c), c.layer)))


def _change(name: str, row: _Row) -> Change:
    order = (*WAYS, WORK, INSTEAD)
    details = sorted(row.details.values(), key=lambda d: (order.index(d.way), -d.bytes, d.op))
    return Change(name, row.ways, sum(d.seconds for d in details), tuple(details))


def _bytes(change: Change) -> int:
    return sum(tally.bytes for tally in change.ways.values())


def _kept(plan: Plan) -> Iterator[tuple[str, Detail]]:
    """Tensors held from one segment to a later one, and what is held instead of tensors."""
    graph, reasons = plan.graph, _reasons()
    for storage in sorted(set().union(*plan.timeline.kept)):
        value = graph.value[storage]
        makers = graph.makers[storage]
        if not makers or value.kind is Kind.GRADIENT or storage in graph.exists_outside:
            continue
        small = only_rules_make(graph, storage)
        reason = reasons.get(makers[0].rule, makers[0].rule) if small else _REASONS[KEEP]
        way = ENCODE if small else KEEP
        yield value.layer, Detail(way, makers[0].target, reason, 1, value.bytes, 0.0)


def _run(plan: Plan) -> Iterator[tuple[str, Detail]]:
    """Ops that run more or other than without a plan."""
    graph, reasons = plan.graph, _reasons()
    before = plan.unplanned.program.counts
    kept = set().union(*plan.timeline.kept)
    seen: Counter[str] = Counter()
    for segment, name in plan.timeline.program:
        op = graph.op[name]
        seen[name] += 1
        if seen[name] <= before.get(name, 0):
            continue
        way = _way(graph, op, segment, kept)
        again = way in (RECOMPUTE, INVERT)
        size = sum(graph.value[o].bytes for o in op.outputs) if again else 0
        reason = reasons.get(op.rule, op.rule) if op.rule else _REASONS[RECOMPUTE]
        layer = op.layer or (graph.op[op.of].layer if op.of else "")
        yield layer, Detail(way, op.target, reason, 1, size, op.seconds)
    for name, times in before.items():
        for _ in range(times - seen[name]):
            op = graph.op[name]
            yield op.layer, Detail(INSTEAD, op.target, _REASONS[INSTEAD], 1, 0, -op.seconds)


def _way(graph: Graph, op: Op, segment: int, kept: set[str]) -> str:
    if not op.rule:
        return RECOMPUTE
    touched = {graph.storage(name) for name in (*op.inputs, *op.outputs)}
    if any(s in kept and only_rules_make(graph, s) for s in touched):
        return WORK
    if _inverts(graph, op):
        return INVERT
    captured = graph.op[op.of] if op.of else op
    return RECOMPUTE if captured.segment < segment else OTHER


def _inverts(graph: Graph, op: Op) -> bool:
    """It makes what a captured op read from what that op made."""
    makers = (maker for name in op.inputs for maker in graph.makers[name] if not maker.rule)
    return any(not set(op.outputs).isdisjoint(maker.inputs) for maker in makers)


def _reasons() -> dict[str, str]:
    return {rule.name: rule.reason for rule in DEFAULT_RULES}
