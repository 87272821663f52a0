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

from lowtide.solve.compiled import COMPILED, remove_stale_caches

__all__ = ["COMPILED", "barrier", "flat", "inline", "loop", "shares", "spread", "together", "wait"]

if COMPILED:
    from llvmlite import ir
    from numba import njit, types
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


def spread(function: Callable[..., None], turns: int, each: int, *arguments: Any) -> None:
    """`function(first, last, *arguments)` for all of range(turns), a stretch for each thread. A turn is for `each` so many numbers."""
    stretches = shares(turns, min(turns, turns * each // _LEAST))
    if len(stretches) == 1:
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


def shares(turns: int, most: int) -> list[tuple[int, int]]:
    """Equal stretches of range(turns), but for one turn more or less: one for each thread, at most so many."""
    threads = max(1, min(torch.get_num_threads(), most))
    return list(pairwise([turns * i // threads for i in range(threads + 1)]))


def together(
    function: Callable[..., None], stretches: list[tuple[int, int]], *arguments: Any
) -> bool:
    """All stretches at the same time, each on a thread of its own, so that they may `wait` for each other; False if that cannot be."""
    if len(stretches) == 1:
        function(*stretches[0], *arguments)
        return True
    team = _team()
    return team is not None and team.run(function, stretches, arguments, at_once=True)


def barrier() -> int:
    """Address of the function at which threads that run `together` wait for each other; 0 if there are none."""
    team = _team()
    return 0 if team is None else team.barrier


def flat(tensor: Tensor) -> NDArray[Any]:
    """The elements in the order they lie in memory; the tensor must be dense."""
    return tensor.as_strided((tensor.numel(),), (1,)).numpy()


if COMPILED:

    @intrinsic  # type: ignore[untyped-decorator]
    def wait(_: Any, address: Any) -> Any:
        """In a loop: for all others that run `together` with it. `address` is `barrier()`."""

        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
            return context.get_dummy_value()

        return types.void(types.int64), generate

else:

    def wait(address: int) -> None:
        """Nothing runs together."""


class _Team:
    """The threads of an OpenMP runtime, that of GNU or one that understands its calls."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.parallel = library.GOMP_parallel
        self.parallel.argtypes = [self.callback, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.parallel.restype = None
        self.number, self.count = library.omp_get_thread_num, library.omp_get_num_threads
        self.barrier = int(ctypes.cast(library.GOMP_barrier, ctypes.c_void_p).value or 0)

    def run(
        self,
        function: Callable[..., None],
        stretches: list[tuple[int, int]],
        arguments: tuple[Any, ...],
        at_once: bool = False,
    ) -> bool:
        """Whether it ran: `at_once` it does so only if there is a thread for each stretch."""
        failed: list[BaseException] = []
        enough = [True]

        def work(_: object) -> None:
            try:  # fewer threads may have come than were asked for
                if at_once and self.count() != len(stretches):
                    enough[0] = False
                    return
                for first, last in stretches[self.number() :: self.count()]:
                    function(first, last, *arguments)
            except BaseException as error:  # nothing may be raised into the runtime
                failed.append(error)

        self.parallel(self.callback(work), None, len(stretches), 0)
        if failed:
            raise failed[0]
        return enough[0]


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
