"""How does a loop over memory run that no torch op does in one pass? Compiled by numba, shared among as many threads as torch uses.

numba because it is here already for the planner and needs no compiler on the user's machine. Its own parallel loops are not used:
their thread pool beside torch's makes both wait. Without numba `COMPILED` is False, and kernels are made of torch ops: same bits,
several passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["COMPILED", "flat", "loop", "spread"]

try:
    from numba import njit

    COMPILED = True
except ImportError:  # no wheel for this Python yet
    COMPILED = False

_LEAST = 1 << 14
"""Turns of a loop that are worth a thread."""


def loop(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a function of (first, last, arrays and numbers)."""
    if not COMPILED:
        return function
    fast: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return fast


def spread(function: Callable[..., None], turns: int, *arguments: Any) -> None:
    """`function(first, last, *arguments)` for all of range(turns), a stretch for each thread."""
    threads = max(1, min(torch.get_num_threads(), turns // _LEAST))
    edges = [turns * i // threads for i in range(threads + 1)]
    others = [_pool().submit(function, a, b, *arguments) for a, b in pairwise(edges[1:])]
    function(0, edges[1], *arguments)
    for job in others:
        job.result()


def flat(tensor: Tensor) -> NDArray[Any]:
    """The elements in the order they lie in memory; the tensor must be dense."""
    return tensor.as_strided((tensor.numel(),), (1,)).numpy()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lowtide")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
