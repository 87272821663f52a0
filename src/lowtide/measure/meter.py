"""How many bytes does a stretch of somebody else's code have allocated at once? For code that we do not call ourselves.

    meter.start()      from here on
    meter.mark()       a stretch ends, the next begins
    meter.stop()       the peak of each stretch, net of what was there at the start

As `measure/peak.py` does it: allocator events on the CPU, the allocator's own statistics on CUDA. Between `pause` and `resume` nothing is counted. When
a profiler of the user's runs, or is started meanwhile, ours gives way and there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.autograd.profiler as torch_profiler
from torch._C import _autograd

from lowtide.measure.peak import _LegacyProfile

__all__ = ["Meter"]

_MARK = "lowtide: mark"
_STARTERS = ("_prepare_profiler", "_enable_profiler")
"""What torch.profiler calls before it begins."""


class Meter:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.running = self.lost = self.started = False
        self.now = 0
        self.peaks = [0]
        self.starters: dict[str, Callable[..., Any]] = {}

    def start(self) -> None:
        self.now, self.peaks, self.lost, self.started = 0, [0], False, True
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        self.resume()

    def stop(self) -> list[int] | None:
        """None where it was not possible to tell."""
        self.pause()
        self.started = False
        return None if self.lost else self.peaks

    def mark(self) -> None:
        if not self.running:
            return
        if self.device.type == "cuda":
            self.read_cuda()
            self.peaks.append(0)
        else:
            with torch_profiler.record_function(_MARK):
                pass

    def resume(self) -> None:
        if self.running or self.lost or not self.started:
            return
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif _LegacyProfile is None or self.taken():
            self.lost = True
            return
        else:
            self.watch_others()
            _autograd._enable_profiler_legacy(_LegacyProfile(profile_memory=True).config())
        self.running = True

    def taken(self) -> bool:
        """Does a profiler of the user's run? One of ours may be left: a session that ends inside of a scope which puts the thread's state back,
        as compilation does, is there again after it."""
        if _autograd._profiler_enabled() and not torch_profiler._is_profiler_enabled:
            with suppress(RuntimeError):
                _autograd._disable_profiler_legacy()
        return bool(_autograd._profiler_enabled())

    def pause(self) -> None:
        if not self.running:
            return
        self.running = False
        if self.device.type == "cuda":
            self.read_cuda()
            return
        self.unwatch_others()
        self.read(_autograd._disable_profiler_legacy())

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self.running
        self.pause()
        try:
            yield
        finally:
            if running:
                self.resume()

    def read_cuda(self) -> None:
        torch.cuda.synchronize(self.device)
        most = torch.cuda.max_memory_allocated(self.device) - self.before
        self.peaks[-1] = max(self.peaks[-1], most)
        torch.cuda.reset_peak_memory_stats(self.device)

    def read(self, threads: list[Any]) -> None:
        events = [e for thread in threads for e in thread if e.kind() != "pop"]
        if len(threads) > 1 and events:
            events.sort(key=events[0].cpu_elapsed_us)
        for event in events:
            if event.kind() == "memory_alloc":
                self.now += event.cpu_memory_usage()
                self.peaks[-1] = max(self.peaks[-1], self.now)
            elif event.name() == _MARK:
                self.peaks.append(self.now)

    def watch_others(self) -> None:
        for name in _STARTERS:
            original = getattr(torch_profiler, name, None)
            if original is not None:
                self.starters[name] = original
                setattr(torch_profiler, name, self.giving_way(original))

    def unwatch_others(self) -> None:
        for name, original in self.starters.items():
            setattr(torch_profiler, name, original)
        self.starters.clear()

    def giving_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            if self.running:
                self.pause()
                self.lost = True
            return original(*args, **kwargs)

        return start
