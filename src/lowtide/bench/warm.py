"""How does the first plan not pay for what all plans need? A tiny step is planned before any clock starts.

What planners compile on first use, and load from their cache in every process, is then there; processes that are forked afterwards inherit it.
"""

from __future__ import annotations

from functools import cache

from lowtide.ir.graph import Graph, Op, Outside, Required, Value
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.planner import solve

__all__ = ["warm_up"]

_LENGTH, _SECONDS = 12, 0.2


@cache
def warm_up() -> None:
    """Once per process."""
    graph = _chain()
    budget = int(0.6 * simulate(graph, unplanned(graph)).peak)
    for solver in ("search", "auto"):  # which may not be the same for a step this small
        solve(graph, budget, solver=solver, seconds=_SECONDS)


def _chain() -> Graph:
    """A line of ops; the backward of each reads what it made."""
    last = _LENGTH - 1
    names = ["x", *(f"y{i}" for i in range(_LENGTH)), "d", *(f"d{i}" for i in range(_LENGTH))]
    forward = [
        Op(f"f{i}", "aten.tanh.default", (f"y{i - 1}" if i else "x",), (f"y{i}",), 0, 1.0)
        for i in range(_LENGTH)
    ]
    backward = [
        Op(f"b{i}", "aten.tanh_backward.default", (f"d{i + 1}" if i < last else "d", f"y{i}"), (f"d{i}",), 1, 1.0)
        for i in reversed(range(_LENGTH))
    ]  # fmt: skip
    return Graph(
        values=tuple(Value(name, 100, name) for name in names),
        ops=(*forward, *backward),
        outside=(Outside("x"), Outside("d", 1, owned=False)),
        required=(Required(f"y{last}", 0, 0), Required("d0", 1)),
    )
