"""Dropout and other random ops: keep the generator's state, not what was drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph
from lowtide.rules.base import Exactness, Proposal

__all__ = ["Replay"]


@dataclass(frozen=True)
class Replay:
    name: str = "replay"
    reason: str = "draws the same random numbers again from the noted generator state"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            state = f"{op.name}.generator"
            if state in graph.value:
                again = replace(
                    op,
                    name=f"{op.name}.replay",
                    target="lowtide.replay",
                    inputs=(*op.inputs, state),
                    rerun=True,
                    effect=False,
                    rule=self.name,
                    of=op.name,
                )
                yield Proposal((again,))
