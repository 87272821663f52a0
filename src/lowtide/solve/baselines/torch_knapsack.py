"""What would PyTorch's own `activation_memory_budget` keep? A knapsack on saved bytes.

Follows `torch/_functorch/partitioners.py: choose_saved_values_set` and `_activation_checkpointing/knapsack.py` of torch
2.13, in our own words. Torch's knob is a ratio of the bytes it would save at ratio 1, where a min-cut with bans chooses
what to save. Below 1 each banned value is an item that weighs its share of those bytes and is worth the time of the one
op that makes it; a 0-1 knapsack over weights rounded to 1/10000 chooses which to save. Ratio 0 saves nothing.

Simplifications:
- The items are the storages that backward reads directly and that could be recomputed. Torch's min-cut may save a
  smaller value in front of one; its bans exist to undo that for anything but cheap pointwise ops, whose inputs and
  outputs mostly weigh the same.
- Torch runs its min-cut again after the knapsack, with the losers allowed to be recomputed; here the winners are kept
  and nothing else. The worth of an item ignores what recomputing it drags along, here as there.
- An item is a storage, where torch would count every view of it.

The knob knows no peak. So that it can be compared at a budget, its ratios 1.0, 0.9, ..., 0.0 are tried, and the fastest
program whose simulated peak is within the budget is returned, else the one with the smallest peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.solve.baselines.keeping import fastest_fitting, write_program
from lowtide.solve.baselines.remaking import Remaking, remaking

__all__ = ["RATIOS", "torch_knapsack", "torch_saved"]

RATIOS = tuple(tenths / 10 for tenths in range(10, -1, -1))
_UNITS = 10_000


@dataclass(frozen=True, slots=True)
class _Item:
    storage: str
    weight: int
    """In 1/10000 of all saved bytes."""
    worth: float
    """Seconds of the op that makes it."""


def torch_knapsack(graph: Graph, budget: int) -> Program:
    way = remaking(graph)
    choices = dict.fromkeys(_saved(way, RATIOS))
    return fastest_fitting(graph, budget, [write_program(way, saved) for saved in choices])


def torch_saved(graph: Graph, ratio: float) -> frozenset[str]:
    """The storages saved at one ratio."""
    return _saved(remaking(graph), (ratio,))[0]


def _saved(way: Remaking, ratios: tuple[float, ...]) -> list[frozenset[str]]:
    items = _items(way)
    taken = _table(items)
    return [_pack(items, taken, ratio) for ratio in ratios]


def _items(way: Remaking) -> list[_Item]:
    size = way.folded.bytes
    ordered = [s for s in way.made if s in way.read_again and way.graph.value[s].keep]
    ordered.sort(key=size.__getitem__, reverse=True)
    whole = sum(size[s] for s in ordered) or 1
    return [
        _Item(s, round(_UNITS * size[s] / whole), way.graph.makers[s][0].seconds) for s in ordered
    ]


def _table(items: list[_Item]) -> npt.NDArray[np.bool_]:
    """Whether item i is taken when items 0..i share each capacity. One table answers every ratio."""
    best = np.zeros(_UNITS + 1)
    taken = np.zeros((len(items), _UNITS + 1), dtype=np.bool_)
    for row, item in zip(taken, items):
        room = _UNITS + 1 - item.weight
        with_it = best[:room] + item.worth
        row[item.weight :] = with_it > best[item.weight :]
        best[item.weight :] = np.maximum(best[item.weight :], with_it)
    return taken


def _pack(items: list[_Item], taken: npt.NDArray[np.bool_], ratio: float) -> frozenset[str]:
    if ratio >= 1:
        return frozenset(item.storage for item in items)
    if ratio <= 0:
        return frozenset()
    room = round(ratio * _UNITS)
    saved: list[str] = []
    for item, row in zip(reversed(items), taken[::-1]):
        if row[room]:
            saved.append(item.storage)
            room -= item.weight
    return frozenset(saved)
