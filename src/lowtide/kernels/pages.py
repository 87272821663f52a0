"""How is fresh memory had sooner? In pages of 2 MiB where the system has them, not of 4 KiB.

A large tensor is fresh memory every time: the allocator gives it back when it goes. Each page costs a fault when it is first written, and
for 50 MB in small pages these take longer than the writing. Linux gives large pages to those who ask (`transparent_hugepage=madvise`); where
nobody can be asked, nothing changes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

from torch import Tensor

__all__ = ["in_large_pages"]

_PAGE = 2**21
_LARGE_PLEASE = 14
"""MADV_HUGEPAGE"""
_WORTH = 4 * _PAGE


def in_large_pages(tensor: Tensor) -> Tensor:
    """The same tensor. To be called before it is first written."""
    size = tensor.numel() * tensor.element_size()
    if size >= _WORTH and tensor.device.type == "cpu" and (advise := _advise()) is not None:
        first = -(-tensor.data_ptr() // _PAGE) * _PAGE
        last = (tensor.data_ptr() + size) // _PAGE * _PAGE
        advise(first, last - first, _LARGE_PLEASE)  # a refusal changes nothing
    return tensor


@cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    advise: Callable[[int, int, int], int] = function
    return advise
