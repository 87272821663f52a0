"""What if nothing is recomputed? The step as captured: the reference for every overhead and every saving.

Follows what every framework does by default: keep what a later op reads, free it after its last reader. The budget is
not looked at. Deviates only where the user demanded recomputation (`keep=False`): those values are recomputed, because
a program that keeps them is not one the user asked for.
"""

from __future__ import annotations

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program, unplanned
from lowtide.solve.baselines.keeping import program_keeping

__all__ = ["keep_all"]


def keep_all(graph: Graph, budget: int) -> Program:
    if all(v.keep for v in graph.values):
        return unplanned(graph)
    return program_keeping(graph, lambda storage: True)
