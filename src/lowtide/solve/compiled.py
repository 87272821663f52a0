"""Compiling the inner loops: numba where it is installed, plain Python where it is not.

The planner plays tens of thousands of candidate programs a second; interpreted Python plays a few hundred. numba compiles the
functions as they are written, so there is one source and no build step; its result is cached beside the source.

numba renews a cached function when its own file changes, not when one that it calls does. So caches older than the newest
source in their folder are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["COMPILED", "compiled", "inlined", "remove_stale_caches"]

try:
    from numba import njit

    COMPILED = True
except ImportError:  # no wheel for this Python yet
    COMPILED = False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function over arrays and numbers."""
    if not COMPILED:
        return function
    fast: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    return fast


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a helper in an inner loop. A call would copy every array of the tuples it is given, a few hundred words."""
    if not COMPILED:
        return function
    fast: Callable[..., Any] = njit(inline="always", nogil=True)(function)
    return fast


def remove_stale_caches(folder: Path) -> None:
    with suppress(OSError):
        newest = max(source.stat().st_mtime for source in folder.glob("*.py"))
        for cached in folder.glob("__pycache__/*.nb[ci]"):
            if cached.stat().st_mtime < newest:
                cached.unlink()


remove_stale_caches(Path(__file__).parent)
