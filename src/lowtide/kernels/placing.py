"""A part's gradient added to a sum where the part lies: see `rules/placed.py` for why.

Same bits as adding a whole tensor of zeros around it. That turns a -0.0 elsewhere in the sum into 0.0, so the zeros have to be added where there
may be such; a sum of parts that do not meet has none.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["placed"]


def placed(
    total: Tensor,
    part: Tensor,
    axis: int,
    first: int,
    last: int,
    step: int,
    signed: bool,
    *,
    over: Tensor | None = None,
) -> Tensor:
    """`total` plus `part`, which lies at `first:last:step` of this axis; `signed`: there may be a -0.0 elsewhere. `over` is the sum itself, if it is not
    needed any more."""
    made = total.clone() if over is None else over
    if not signed:
        _there(made, axis, first, last, step).add_(part)
        return made
    added = _there(made, axis, first, last, step) + part
    made.add_(0.0)
    _there(made, axis, first, last, step).copy_(added)
    return made


def _there(whole: Tensor, axis: int, first: int, last: int, step: int) -> Tensor:
    places = [slice(None)] * whole.dim()
    places[axis] = slice(first, last, step)
    return whole[tuple(places)]
