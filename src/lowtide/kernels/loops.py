"""How does a loop over memory run that no torch op does in one pass? Compiled by numba, shared among torch's own threads.

numba because it is here already for the planner and needs no compiler on the user's machine. Its own parallel loops are not used, nor
is a pool of threads where it can be helped: torch's wait for their next op by spinning, and whoever else wants their cores gets half of
them. So the loops are handed to torch's threads, through the entry of its OpenMP runtime that compiled code uses. Where there is no such
runtime it is a pool after all.

Without numba `COMPILED` is False, and kernels are made of torch ops: same bits, several passes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
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

_LEAST = 1 << 17
"""Numbers that are worth a thread."""


def loop(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a function of (first, last, arrays and numbers)."""
    if not COMPILED:
        return function
    fast: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return fast


def spread(function: Callable[..., None], turns: int, each: int, *arguments: Any) -> None:
    """`function(first, last, *arguments)` for all of range(turns), a stretch for each thread. A turn is for `each` so many numbers."""
    threads = max(1, min(torch.get_num_threads(), turns, turns * each // _LEAST))
    edges = [turns * i // threads for i in range(threads + 1)]
    stretches = list(pairwise(edges))
    if threads == 1:
        function(0, turns, *arguments)
        return
    team = _team()
    if team is not None:
        team.run(function, stretches, arguments)
        return
    others = [_pool().submit(function, a, b, *arguments) for a, b in stretches[1:]]
    function(*stretches[0], *arguments)
    for job in others:
        job.result()


def flat(tensor: Tensor) -> NDArray[Any]:
    """The elements in the order they lie in memory; the tensor must be dense."""
    return tensor.as_strided((tensor.numel(),), (1,)).numpy()


class _Team:
    """The threads of an OpenMP runtime, that of GNU or one that understands its calls."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.parallel = library.GOMP_parallel
        self.parallel.argtypes = [self.callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.parallel.restype = None
        self.number, self.count = library.omp_get_thread_num, library.omp_get_num_threads

    def run(
        self,
        function: Callable[..., None],
        stretches: list[tuple[int, int]],
        arguments: tuple[Any, ...],
    ) -> None:
        failed: list[BaseException] = []

        def work(_: object) -> None:
            try:  # fewer threads may have come than were asked for
                for first, last in stretches[self.number() :: self.count()]:
                    function(first, last, *arguments)
            except BaseException as error:  # nothing may be raised into the runtime
                failed.append(error)

        self.parallel(self.callback(work), None, len(stretches), 0)
        if failed:
            raise failed[0]


@cache
def _team() -> _Team | None:
    """Of the runtime that comes with torch."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            return _Team(path)
        except (OSError, AttributeError):  # not one, or not to be had
            continue
    return None


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lowtide")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
