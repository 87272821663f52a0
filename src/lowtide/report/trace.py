"""How does a step look in a trace viewer? The ops as they run, and bytes by kind, for ui.perfetto.dev or chrome://tracing.

Written in Chrome's trace event format, which both read: a process for each step, a row for its phases, one for its ops, and a counter that is stacked by
kind. Unlike the page, which shows what can be seen in its columns, a trace has every op and every change.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from lowtide.report.kinds import in_order
from lowtide.report.steps import Step, spans

__all__ = ["trace"]

_MICROSECONDS = 1e6
_PHASES, _OPS = 1, 2
Event = dict[str, Any]


def trace(steps: Sequence[Step]) -> str:
    events = [e for number, step in enumerate(steps, start=1) for e in _events(step, number)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(step: Step, process: int) -> Iterator[Event]:
    yield _name("process_name", step.name, process, 0)
    yield _name("thread_name", "phases", process, _PHASES)
    yield _name("thread_name", "ops", process, _OPS)
    for name, start, end in spans(step.phases, step.seconds):
        yield _lasting(name, start, end, process, _PHASES, {})
    ends = [*(op.start for op in step.running[1:]), step.seconds]
    for op, end in zip(step.running, ends, strict=True):
        about = {k: v for k, v in (("layer", op.layer), ("source", op.source)) if v}
        yield _lasting(op.op, op.start, end, process, _OPS, about)
    yield from _bytes(step, process)


def _bytes(step: Step, process: int) -> Iterator[Event]:
    """A counter's value holds until its next one."""
    changes = sorted(
        (moment, block.kind, size)
        for block in step.blocks
        for moment, size in ((block.start, block.bytes), (block.end, -block.bytes))
    )
    kinds = in_order({kind for _, kind, _ in changes})
    now = Counter[str]()
    for index, (moment, kind, size) in enumerate(changes):
        now[kind] += size
        if index + 1 == len(changes) or changes[index + 1][0] > moment:
            values = {k: now[k] for k in kinds}
            yield {"ph": "C", "name": "bytes", "pid": process, "ts": moment * _MICROSECONDS, "args": values}  # fmt: skip


def _lasting(
    name: str, start: float, end: float, process: int, row: int, about: dict[str, str]
) -> Event:
    return {
        "ph": "X", "name": name, "pid": process, "tid": row,
        "ts": start * _MICROSECONDS, "dur": max(0.0, end - start) * _MICROSECONDS, "args": about,
    }  # fmt: skip


def _name(what: str, name: str, process: int, row: int) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}
