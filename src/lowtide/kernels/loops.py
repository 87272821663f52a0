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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lowtide.solve.compiled import COMPILED, remove_stale_caches

__all__ = ["COMPILED", "Team", "flat", "fused", "inline", "loop", "shares", "spread", "team"]

if COMPILED:
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

remove_stale_caches(Path(__file__).parent)

_LEAST = 1 << 17
"""Numbers that are worth a thread."""


def loop(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a function of (first, last, arrays and numbers)."""
    if not COMPILED:
        return function
    fast: Callable[..., None] = njit(cache=True, nogil=True)(function)
    return fast


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for a function that loops call. A number over zero is infinite, as in torch: whoever has to look cannot do eight at once."""
    if not COMPILED:
        return function
    fast: Callable[..., Any] = njit(cache=True, nogil=True, error_model="numpy")(function)
    return fast


def _fused(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[0].type
        kind = ir.FunctionType(number, [number] * 3)
        name = f"llvm.fma.f{a.bitwidth}"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return (a(a, a, a), generate) if a == b == c and isinstance(a, types.Float) else None


fused: Callable[..., Any] = intrinsic(_fused) if COMPILED else _fused


def spread(function: Callable[..., None], turns: int, each: int, *arguments: Any) -> None:
    """`function(first, last, *arguments)` for all of range(turns), a stretch for each thread. A turn is for `each` so many numbers."""
    stretches = shares(turns, min(turns, turns * each // _LEAST))
    if len(stretches) == 1:
        function(0, turns, *arguments)
        return
    found = team()
    if found is not None:
        found.run(function, stretches, arguments)
        return
    others = [_pool().submit(function, a, b, *arguments) for a, b in stretches[1:]]
    function(*stretches[0], *arguments)
    for job in others:
        job.result()


def shares(turns: int, most: int) -> list[tuple[int, int]]:
    """Equal stretches of range(turns), but for one turn more or less: one for each thread, at most so many."""
    threads = max(1, min(torch.get_num_threads(), most))
    return list(pairwise([turns * i // threads for i in range(threads + 1)]))


def flat(tensor: Tensor) -> NDArray[Any]:
    """The elements in the order they lie in memory; the tensor must be dense."""
    return tensor.as_strided((tensor.numel(),), (1,)).numpy()


class Team:
    """The threads of an OpenMP runtime, that of GNU or one that understands its calls."""

    def __init__(self, path: Path) -> None:
        self.library = library = ctypes.CDLL(str(path))
        self.start = library["GOMP_parallel"]
        self.start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.start.restype = None
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.parallel = library.GOMP_parallel
        self.parallel.argtypes = [self.callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.parallel.restype = None
        self.number, self.count = library.omp_get_thread_num, library.omp_get_num_threads
        self.number_at, self.count_at = _address(self.number), _address(self.count)
        self.barrier = _address(library.GOMP_barrier)

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """What this thread calls meanwhile is not shared with others."""
        before = self.library.omp_get_max_threads()
        self.library.omp_set_num_threads(1)
        try:
            yield
        finally:
            self.library.omp_set_num_threads(before)


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


@cache
def team() -> Team | None:
    """Of the runtime that comes with torch."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        try:
            return Team(path)
        except (OSError, AttributeError):  # not one, or not to be had
            continue
    return None


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lowtide")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
