"""Compiling the inner loops: numba where it is installed, plain Python where it is not.

The planner plays tens of thousands of candidate programs a second; interpreted Python plays a few hundred. numba compiles the
functions as they are written, so there is one source and no build step; its result is cached beside the source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["COMPILED", "compiled"]

try:
    from numba import njit

    COMPILED = True
except ImportError:  # no wheel for this Python yet
    COMPILED = False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function over arrays and numbers."""
    if not COMPILED:
        return function
    fast: Callable[..., Any] = njit(cache=True)(function)
    return fast
