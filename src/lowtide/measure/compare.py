"""How far are the tensors that one step leaves from those of another?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["Results", "worst_error"]

Results = Mapping[str, Tensor | None]


def worst_error(found: Results, expected: Results) -> tuple[float, str]:
    """The largest norm of a difference by the norm of what was expected, and whose it is; 0.0 for the same bits."""
    norms = [_norm(t) for t in expected.values() if t is not None]
    # What rounding leaves of a gradient that is zero on paper is not an error.
    small = 1e-6 * math.sqrt(sum(n * n for n in norms))
    errors = [(_error(found.get(name), t, small), name) for name, t in expected.items()]
    return max((e for e in errors if e[0] != 0), default=(0.0, ""))


def _error(found: Tensor | None, expected: Tensor | None, small: float) -> float:
    if found is None or expected is None:
        return 0.0 if found is expected else math.inf
    if torch.equal(found, expected):
        return 0.0
    error = _norm(found.double() - expected.double()) / (_norm(expected) + small)
    return math.inf if math.isnan(error) else error


def _norm(tensor: Tensor) -> float:
    return float(tensor.double().norm())
