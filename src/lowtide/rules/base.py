"""What is a rule? A frozen value that looks at a graph and proposes more makers for its values. It never decides.

To add one: write a frozen dataclass with `name`, `reason`, `exactness` and `propose`, and put it into `DEFAULT_RULES`
(`rules/__init__.py`) or pass it with `rules=`. Each proposed op names the captured op it is another form of (`of`) and the rule
(`rule`); `execute/lower.py` must know how to run an op of that rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Protocol

from lowtide.ir.graph import Graph, Op

__all__ = ["Exactness", "Rule", "add_makers"]


class Exactness(StrEnum):
    EXACT = "exact"
    """The same bits."""
    ROUNDING = "rounding"
    """The same mathematics, other rounding."""
    LOSSY = "lossy"
    """A smaller, approximate form."""
    MOVE = "move"
    """The same bits, through other memory."""


class Rule(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str:
        """One sentence for reports: why this saves memory."""

    @property
    def exactness(self) -> Exactness: ...

    def propose(self, graph: Graph) -> Iterable[Op]:
        """More makers for values of the graph."""


def add_makers(
    graph: Graph, rules: Sequence[Rule], allow: Sequence[str] = (), fuel: int | None = None
) -> Graph:
    """The graph with what the allowed rules propose, each op right after the captured op it is another form of. With `fuel`,
    only the first so many proposals: to find a wrong one by halving."""
    allowed = {Exactness.EXACT, *map(Exactness, allow)}
    proposed: dict[str, list[Op]] = {}
    offered = (op for rule in rules if rule.exactness in allowed for op in rule.propose(graph))
    for op in islice(offered, fuel):
        proposed.setdefault(op.of, []).append(op)
    return graph.with_ops(o for op in graph.ops for o in (op, *proposed.get(op.name, ())))
