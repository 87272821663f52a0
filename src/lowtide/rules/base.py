"""What is a rule? A frozen value that looks at a graph and proposes more makers for its values. It never decides.

To add one: write a frozen dataclass with `name`, `reason`, `exactness` and `propose`, and put it into `DEFAULT_RULES`
(`rules/__init__.py`) or pass it with `rules=`. Each proposed op names the captured op it is another form of (`of`) and the rule
(`rule`); `capture/forms/` must know how to call an op of that rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Protocol

from lowtide.ir.graph import Graph, Op, Value

__all__ = [
    "BY_DEFAULT",
    "LESS_WORK",
    "ONLY_FASTER",
    "REMAKES",
    "SAME_BITS",
    "Exactness",
    "Proposal",
    "Rule",
    "add_makers",
]

REMAKES = frozenset(("lowtide.copy_back", "lowtide.decode", "lowtide.dropped", "lowtide.inverted"))
"""Targets of ops that make one captured tensor from what a rule or a later op made of it: not another form of the op that made it, whatever else that
made and however long it took."""

ONLY_FASTER = frozenset(("turned",))
"""Rules whose ops read and make what the captured ones do: all they can be is faster."""

LESS_WORK = ONLY_FASTER | {"outer", "placed", "recurrent", "lowtide.max_pool"}
"""Rules, or targets, whose ops do less than the captured ones, or take long enough to be believed: these may be faster. Of all others, what is measured to be faster
is mostly noise."""


class Exactness(StrEnum):
    EXACT = "exact"
    """The same bits."""
    KERNEL = "kernel"
    """The same mathematics by another kernel for a whole layer: the last bits differ, as they do between devices."""
    ROUNDING = "rounding"
    """The same mathematics, other rounding."""
    LOSSY = "lossy"
    """A smaller, approximate form."""
    MOVE = "move"
    """The same bits, through other memory."""
    SPARSE = "sparse"
    """The same bits, in as much memory as the data asks for: a plan cannot promise the peak for all batches."""


BY_DEFAULT = (Exactness.EXACT, Exactness.KERNEL)
"""What need not be allowed."""
SAME_BITS = (Exactness.EXACT, Exactness.MOVE, Exactness.SPARSE)
"""What leaves every gradient as it is."""


@dataclass(frozen=True)
class Proposal:
    """One more way to make something: ops, and the values that nobody but they make (another layout, an encoding)."""

    ops: tuple[Op, ...]
    values: tuple[Value, ...] = ()
    over: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For captured ops, the inputs over which they may be written (`Op.over`)."""


class Rule(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str:
        """One sentence for reports: why this saves memory."""

    @property
    def exactness(self) -> Exactness: ...

    @property
    def probed(self) -> bool:
        """What only the device or the data can tell. Other kernels than the captured ones are exact only on devices where both give the same bits;
        that is looked up or tried when the ops are priced, and elsewhere they count as rounding. Nor are such rules' ops offered without it."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        """More makers for values of the graph."""


def add_makers(
    graph: Graph, rules: Sequence[Rule], allow: Sequence[str] = (), fuel: int | None = None
) -> Graph:
    """The graph with what the allowed rules propose, each op right after the captured op it is another form of, or after the op that
    makes what it reads. With `fuel`, only the first so many proposals: to find a wrong one by halving."""
    allowed = {*BY_DEFAULT, *map(Exactness, allow)}
    place = {op.name: number for number, op in enumerate(graph.ops)}
    after = {name: place[op.name] for op in graph.ops for name in op.outputs}
    proposed: dict[int, list[Op]] = {}
    values = list(graph.values)
    over: dict[str, tuple[str, ...]] = {}
    offered = (p for rule in rules if rule.exactness in allowed for p in rule.propose(graph))
    for proposal in islice(offered, fuel):
        values += proposal.values
        over |= proposal.over
        for op in proposal.ops:
            number = max(place[op.of], *(after.get(name, 0) for name in op.inputs), 0)
            proposed.setdefault(number, []).append(replace(op, rows=()))  # a fact of captured ops
            after |= {value.name: number for value in proposal.values if value.name in op.outputs}
    captured = (replace(o, over=over[o.name]) if o.name in over else o for o in graph.ops)
    ops = (o for number, op in enumerate(captured) for o in (op, *proposed.get(number, ())))
    return replace(graph, ops=tuple(ops), values=tuple(values))
