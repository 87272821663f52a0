"""Where does a part lie that autograd puts among zeros, and what lies there already?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form
from lowtide.ir.graph import Op
from lowtide.kernels.placing import placed

__all__ = ["in_place_of_zeros"]

aten = torch.ops.aten


class _Place(NamedTuple):
    axis: int
    first: int
    last: int
    step: int

    def meets(self, other: _Place) -> bool:
        """False where they certainly do not."""
        apart = self.last <= other.first or other.last <= self.first
        return not (self.axis == other.axis and apart)


def in_place_of_zeros(captured: Captured, op: Op, plain: Form) -> Form | None:
    total = captured.tensors[op.inputs[0]]
    left, right = plain.args[:2]
    padded = right if left is total else left
    place = _place(padded)
    if place is None or not _plain_sum(captured.nodes[op.of]):
        return None
    selects = padded.target is aten.select_backward.default
    signed = not _without_minus_zero(total)
    return Form(_selected if selects else placed, (total, padded.args[0], *place, signed), {})


def _selected(
    total: torch.Tensor, part: torch.Tensor, axis: int, *rest: Any, **options: Any
) -> torch.Tensor:
    """One index, read as a slice of one."""
    return placed(total, part.unsqueeze(axis), axis, *rest, **options)


def _plain_sum(node: fx.Node) -> bool:
    """Of two tensors of the sum's own shape and type, neither of them multiplied."""
    made = node.meta["val"]
    given = [n.meta["val"] for n in node.args if isinstance(n, fx.Node)]
    alike = all((t.shape, t.dtype) == (made.shape, made.dtype) for t in given)
    sums = node.target is aten.add.Tensor and not node.kwargs and len(node.args) == len(given) == 2
    return sums and alike and made.dtype.is_floating_point


def _place(node: Any) -> _Place | None:
    """Of a part among zeros; None if it is not one, or where is not known."""
    if not isinstance(node, fx.Node):
        return None
    if node.target is aten.select_backward.default:
        _, sizes, axis, index = node.args
        numbers = [*sizes, axis, index]  # type: ignore[misc]
    elif node.target is aten.slice_backward.default:
        _, sizes, axis, *range_ = node.args
        numbers = [*sizes, axis, *range_]  # type: ignore[misc]
    else:
        return None
    if not all(type(n) is int for n in numbers):
        return None
    axis %= len(sizes)  # type: ignore[operator,arg-type]
    length = sizes[axis]  # type: ignore[index]
    if node.target is aten.select_backward.default:
        return _Place(axis, index % length, index % length + 1, 1)  # type: ignore[operator]
    first, last, step = slice(*range_).indices(length)
    return _Place(axis, first, last, step) if step > 0 else None


def _without_minus_zero(total: fx.Node) -> bool:
    """A sum of two or more parts among zeros, the last two of which do not meet: wherever one lies the other has added 0.0 to what was there, and
    elsewhere both have."""
    if total.target is not aten.add.Tensor or not _plain_sum(total):
        return False
    for rest, padded in (total.args, total.args[::-1]):
        place = _place(padded)
        if place is not None:
            more = rest.args if rest.target is aten.add.Tensor and _plain_sum(rest) else ()
            places = [other for node in (rest, *more) if (other := _place(node)) is not None]
            if not all(map(place.meets, places)):
                return True
    return False
