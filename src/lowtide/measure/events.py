"""What did the allocator do while a step ran, and inside which op? Torch's profiler, without its noise.

    with recorded() as recording:
        step()
    recording.events        in the order of time: ops begin and end, memory comes and goes, marks are passed

The newer of torch's profilers is used, because only it says the address of each allocation. Between ops a program may leave marks
(`recording.mark(...)`): they come back as events in their place, whatever clock the profiler uses. Nothing here keeps a tensor.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch._C import _autograd
from torch._C._profiler import _EventType, _RecordFunctionFast

from lowtide.errors import LowtideError

__all__ = ["Event", "Recording", "What", "recorded"]

_MARK = "lowtide mark"


class What(Enum):
    BEGIN = "an op begins"
    END = "an op ends"
    MEMORY = "memory is allocated, or released"
    MARK = "a mark is passed"


@dataclass(frozen=True, slots=True)
class Event:
    what: What
    time: int
    """Nanoseconds."""
    thread: int
    name: str = ""
    sequence: int = -1
    """Of an op that autograd knows, and of its backward: the same number."""
    address: int = 0
    bytes: int = 0
    """Negative for a release."""
    mark: Any = None


@dataclass
class Recording:
    device: torch.device
    thread: int = field(default_factory=threading.get_ident)
    marks: list[Any] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """Once the recording has ended."""

    def __post_init__(self) -> None:
        self._flag = _RecordFunctionFast(_MARK)

    def mark(self, what: Any) -> None:
        """Of this thread only: marks of others would have no place in the order."""
        if threading.get_ident() == self.thread:
            self.marks.append(what)
            self._flag.__enter__()
            self._flag.__exit__(None, None, None)


@contextmanager
def recorded(device: torch.device) -> Iterator[Recording]:
    if _autograd._profiler_enabled():
        raise LowtideError("memory cannot be observed while a torch profiler runs: stop it first")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # two lines to stderr for each session
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    recording = Recording(device)
    session = torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True)
    session.__enter__()
    try:
        yield recording
    finally:
        session.__exit__(None, None, None)
        tree = session.profiler.kineto_results.experimental_event_tree()
        found = _flat(tree, device, iter(recording.marks))
        # Within a thread the order is right already; a stable sort puts threads together.
        recording.events = sorted(found, key=lambda event: event.time)


def _flat(tree: Iterable[Any], device: torch.device, marks: Iterator[Any]) -> Iterator[Event]:
    """Begin, what happens inside, end. Without recursion: autograd can nest deeply."""
    stack: list[tuple[Any, Event | None]] = [(node, None) for node in reversed(list(tree))]
    while stack:
        node, end = stack.pop()
        if end is not None:
            yield end
            continue
        time, thread = node.start_time_ns, node.start_tid
        if node.tag == _EventType.Allocation:
            extra = node.extra_fields
            if extra.device.type == device.type:
                yield Event(What.MEMORY, time, thread, address=extra.ptr, bytes=extra.alloc_size)
        elif node.tag == _EventType.TorchOp and node.name == _MARK:
            yield Event(What.MARK, time, thread, mark=next(marks, None))
        elif node.tag == _EventType.TorchOp:
            yield Event(What.BEGIN, time, thread, node.name, node.extra_fields.sequence_number)
            stack.append((node, Event(What.END, node.end_time_ns, thread, node.name)))
            stack.extend((child, None) for child in reversed(node.children))
        else:
            stack.extend((child, None) for child in reversed(node.children))
