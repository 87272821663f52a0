"""What would the known methods do with this graph and this budget?

Each is a function from a graph and a budget in bytes to a program; the simulator judges them all alike. None promises to
meet the budget: what they return when they cannot is their best, and comparing says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.solve.baselines.checkmate import checkmate
from lowtide.solve.baselines.chen import chen
from lowtide.solve.baselines.echo import echo
from lowtide.solve.baselines.keep_all import keep_all
from lowtide.solve.baselines.monet import monet
from lowtide.solve.baselines.torch_knapsack import torch_knapsack

__all__ = ["BASELINES", "QUICK_BASELINES"]

QUICK_BASELINES: Mapping[str, Callable[[Graph, int], Program]] = {
    "keep all": keep_all,
    "echo": echo,
    "chen": chen,
    "torch knapsack": torch_knapsack,
}
"""Quick enough to be tried in every plan, the quickest first."""

BASELINES: Mapping[str, Callable[[Graph, int], Program]] = {
    **QUICK_BASELINES,
    "checkmate": checkmate,
    "monet": monet,
}
"""The 0-1 programs take seconds to minutes, and raise `GraphError` for graphs that are too large for them."""
