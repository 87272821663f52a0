"""Which colour and which place in a stack does each kind of data have? The same in every picture and table.

The order is from what stays all step long, at the bottom, to what comes and goes, on top. The colours are told apart by colour-blind
readers (those of Okabe and Ito, and greys), read on light and dark pages alike, and neighbours in the stack differ in lightness.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.ir.graph import Kind
from lowtide.plan.profile import ENCODED
from lowtide.sim.timeline import KEPT, WORKSPACE

__all__ = ["COLOURS", "colour", "in_order"]

COLOURS: dict[str, str] = {
    Kind.PARAMETER.value: "#55657a",
    Kind.BUFFER.value: "#8796a9",
    Kind.OPTIMIZER.value: "#a9b5c4",
    Kind.BATCH.value: "#c9d2dc",
    KEPT: "#0072b2",
    ENCODED: "#e69f00",
    Kind.ACTIVATION.value: "#56b4e9",
    Kind.GRADIENT.value: "#009e73",
    Kind.TEMPORARY.value: "#cc79a7",
    WORKSPACE: "#f0e442",
    Kind.RANDOM.value: "#8c6d31",
    Kind.OTHER.value: "#8a8a8a",
}


def colour(kind: str) -> str:
    return COLOURS.get(kind, COLOURS[Kind.OTHER.value])


def in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    """As they are stacked; unknown ones last."""
    found = set(kinds)
    known = [kind for kind in COLOURS if kind in found]
    return (*known, *sorted(found.difference(known)))
