"""How many bytes does a piece of code have allocated at once?

    measure_peak(step)        the most bytes allocated at once while `step` runs, net of what was there before
    held_bytes(model, ...)    what was there before: the distinct storages in tensors, modules, optimizers, containers
    record(run, device)       the same for one call, with what is left of it at the end
    available_bytes(device)   what could still be allocated

On CUDA these are the caching allocator's own statistics; its peak mark is reset. The CPU allocator keeps none, but reports each
allocation and release to whichever profiler runs on the calling thread; the highest running sum of these reports is the
peak. Operator workspaces (oneDNN's scratchpads) are among them. Memory that was there before and is released by the
code does not lower the sum, because the allocator does not know its size.

Torch has two profilers that get these reports, with equal sums: `torch.profiler`, which takes a second to start the first time,
writes two lines to stderr each time, and silently ends any other session of the process; and the older one behind
`torch.autograd.profiler_legacy`, which starts in 25 microseconds and refuses to start beside another one. We use the
older one, and the newer only where a future torch has dropped it.

When a profiler is already running on this thread (the user profiles the script in which we measure) the code runs on a
thread of its own, where ours can start: the answer is the same, the user's session goes on, and the measured code does not show in it.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch._C import _autograd
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lowtide.errors import LowtideError

try:
    from torch.autograd.profiler_legacy import profile as _LegacyProfile
except ImportError:
    _LegacyProfile = None

__all__ = ["Recording", "available_bytes", "held_bytes", "measure_peak", "record"]

T = TypeVar("T")

_CGROUPS = tuple(
    (f"/sys/fs/cgroup/{limit}", f"/sys/fs/cgroup/{used}", f"/sys/fs/cgroup/{stat}", idle)
    for limit, used, stat, idle in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    )
)
"""Of both versions of control groups: the limit, what is used, the statistics and their name for idle file pages."""


@dataclass(frozen=True, slots=True)
class Recording(Generic[T]):
    result: T
    peak: int
    """Most bytes allocated at once, net of what was there before."""
    left: int
    """Bytes still allocated at the end, `result` among them."""


def measure_peak(
    step: Callable[[], object], held: int = 0, device: torch.device | str | None = None
) -> int:
    """Most bytes allocated at once while `step` runs, net of what was there before, plus `held`.

    `device` None is CUDA where this process has used CUDA, else the CPU.
    """
    gc.collect()
    return held + record(step, _device(device)).peak


def record(run: Callable[[], T], device: torch.device) -> Recording[T]:
    if device.type == "cuda":
        return _record_cuda(run, device)
    if _LegacyProfile is None:
        return _record_kineto(run)
    if _autograd._profiler_enabled():
        return _on_another_thread(lambda: _record_cpu(run))
    return _record_cpu(run)


def _device(device: torch.device | str | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_initialized() else "cpu")


def _record_cuda(run: Callable[[], T], device: torch.device) -> Recording[T]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = run()
    torch.cuda.synchronize(device)
    most, now = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return Recording(result, max(0, most - before), now - before)


def _record_cpu(run: Callable[[], T]) -> Recording[T]:
    _autograd._enable_profiler_legacy(_LegacyProfile(profile_memory=True).config())
    threads: list[Any] = []
    try:
        result = run()
    finally:
        threads = _autograd._disable_profiler_legacy()
    return Recording(result, *_peak_and_left(_in_order(threads)))


def _in_order(threads: list[Any]) -> Iterator[int]:
    """Sizes of allocations and, negative, of releases. Autograd's own threads are reported one after the other."""
    events = [e for thread in threads for e in thread if e.kind() in ("memory_alloc", "mark")]
    if len(threads) > 1:
        first = events[0]
        events.sort(key=first.cpu_elapsed_us)
    return (e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc")


def _record_kineto(run: Callable[[], T]) -> Recording[T]:
    if _autograd._profiler_enabled():
        raise LowtideError("memory cannot be measured while a torch profiler runs: stop it first")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as session:
        result = run()
    events = [e for e in session.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return Recording(result, *_peak_and_left(e.nbytes() for e in events))


def _peak_and_left(sizes: Iterable[int]) -> tuple[int, int]:
    now = most = 0
    for size in sizes:
        now += size
        most = max(most, now)
    return most, now


def _on_another_thread(run: Callable[[], T]) -> T:
    """A new thread has no profiler and no dispatch modes of its own; gradients are on or off as they are here."""
    grad = torch.is_grad_enabled()

    def body() -> T:
        with torch.set_grad_enabled(grad):
            return run()

    with ThreadPoolExecutor(1, "lowtide") as pool:
        return pool.submit(body).result()


def held_bytes(*things: object) -> int:
    """Bytes of the distinct storages reachable from `things`.

    Of a module its parameters and buffers, not their gradients: a step that accumulates passes those too.
    """
    tensors = list(_tensors(things, {}))
    return sum(dict(_storage(tensor) for tensor in tensors).values())


def _tensors(thing: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield from _plain(thing)
        return
    if id(thing) in seen:
        return
    seen[id(thing)] = thing  # held, so that no other thing gets its id meanwhile
    for part in _parts(thing):
        yield from _tensors(part, seen)


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, torch.nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if isinstance(thing, torch.optim.Optimizer):
        return [thing.state, [group["params"] for group in thing.param_groups]]
    if isinstance(thing, Mapping):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, set, frozenset)):
        return thing
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, f.name, None) for f in dataclasses.fields(thing)]
    return ()


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the memory of a wrapper (DTensor, quantized, ...) or of a sparse tensor."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    except (NotImplementedError, RuntimeError):  # opaque (oneDNN): it has memory but no storage
        return id(tensor), tensor.numel() * tensor.element_size()


def available_bytes(device: torch.device) -> int:
    """What could still be allocated; on the CPU the smaller of what the machine and the container have left."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    return min(_machine_free(), _container_free())


def _machine_free() -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 2**63


def _container_free() -> int:
    """The limit less what is used; files that were only read count as used but can go."""
    for limit, used, stat, idle in _CGROUPS:
        with suppress(OSError, ValueError):
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
            facts = dict(line.split() for line in Path(stat).read_text().splitlines())
            return max(0, left + int(facts.get(idle, 0)))
    return 2**63
