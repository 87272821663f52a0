"""Tensors out of memory and back: into pinned host memory from an accelerator, into a file from the CPU.

What stays is a ticket of eight bytes. It is a tensor that owns its place in the file: when it dies, the place is free again. The file
has no name from the start, so nothing is left behind, however the process ends. Backward reads in the reverse order of
writing, so with every tensor that is read the system is asked to fetch the one that was written before it.

The path through host memory is written for CUDA and untested on hardware.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from functools import cache

import torch
from torch import Tensor

__all__ = ["TICKET", "moved", "moved_back"]

TICKET = 8
"""Bytes."""


@torch.library.custom_op("lowtide::moved", mutates_args=())
def moved(x: Tensor) -> Tensor:
    """A ticket for a dense tensor's bytes."""
    if x.device.type != "cpu":
        host = torch.empty(x.numel(), dtype=x.dtype, pin_memory=True)
        return host.copy_(x.as_strided((x.numel(),), (1,)), non_blocking=True)
    return _file().write(_bytes_of(x))


@torch.library.custom_op("lowtide::moved_back", mutates_args=())
def moved_back(
    ticket: Tensor, shape: list[int], strides: list[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    x = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if device.type != "cpu":
        x.as_strided((x.numel(),), (1,)).copy_(ticket, non_blocking=True)
        return x
    _file().read(int(ticket), _bytes_of(x))
    return x


@moved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty(1, dtype=torch.int64)


@moved_back.register_fake
def _(
    ticket: Tensor, shape: list[int], strides: list[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _bytes_of(x: Tensor) -> memoryview:
    elements = x.detach().as_strided((x.numel(),), (1,))
    return memoryview(elements.view(torch.uint8).numpy())


class _Ticket(bytearray):
    """Its tensor holds on to it, and it to its place."""

    __slots__ = ("__weakref__",)


class _File:
    """Places in a nameless file, used again when their tickets are gone."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(prefix="lowtide-", buffering=0)  # noqa: SIM115
        self.lock = threading.RLock()  # a ticket may die while another is being written
        self.free: dict[int, list[int]] = {}
        self.before: dict[int, tuple[int, int]] = {}
        """Of each place, the one that was written last before it, and its bytes."""
        self.last = (0, 0)
        self.end = 0

    def write(self, content: memoryview) -> Tensor:
        size = len(content)
        with self.lock:
            places = self.free.get(size)
            if places:
                place = places.pop()
            else:
                place, self.end = self.end, self.end + size
            self.before[place], self.last = self.last, (place, size)
        done = 0
        while done < size:
            done += os.pwrite(self.file.fileno(), content[done:], place + done)
        ticket = _Ticket(place.to_bytes(TICKET, "little"))
        weakref.finalize(ticket, self.release, place, size).atexit = False
        return torch.frombuffer(ticket, dtype=torch.int64)

    def read(self, place: int, content: memoryview) -> None:
        before, size = self.before[place]
        if size and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.file.fileno(), before, size, os.POSIX_FADV_WILLNEED)
        done = 0
        while done < len(content):
            got = os.preadv(self.file.fileno(), [content[done:]], place + done)
            if not got:
                raise OSError(f"the file of moved tensors ends {len(content) - done} bytes early")
            done += got

    def release(self, place: int, size: int) -> None:
        with self.lock:
            self.free.setdefault(size, []).append(place)


@cache
def _file() -> _File:
    return _File()


if hasattr(os, "register_at_fork"):  # a child would write over its parent's places
    os.register_at_fork(after_in_child=_file.cache_clear)
