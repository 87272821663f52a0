"""What does a person see while a model is fitted? Three bars on stderr: capture, measure, solve.

Goes in: what `measure_calls` and `solve` report as they work. Comes out: lines on a terminal that vanish at the end, and nothing at all
where stderr is no terminal: a library call prints nothing. The bars are drawn when something was reported, not by a
thread of their own, which would disturb the measuring it shows.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, TextIO

from lowtide.report.rich_quietly import BarColumn, Console, Progress, TaskID, TextColumn
from lowtide.solve.planner import Progress as Solving
from lowtide.units import format_seconds

__all__ = ["Display", "Reporting", "display", "say", "showing"]

_PAUSE = 0.1
"""Seconds between two drawings."""


class Display:
    """Its methods are the callbacks of a `Session`."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.tasks: dict[str, TaskID] = {}
        self.drawn = 0.0

    def capturing(self) -> None:
        self.show("capturing", 0, None, "tracing the step")

    def measuring(self, done: int, total: int, cached: int) -> None:
        self.show("capturing", 1, 1, "done")
        self.show("measuring", done, total, f"{done} of {total} distinct ops ({cached} cached)")

    def solving(self, now: Solving) -> None:
        best = format_seconds(now.seconds) if math.isfinite(now.seconds) else "none yet"
        words = f"best {best}, bound {format_seconds(now.bound)}  Ctrl-C keeps the best"
        self.show("solving", min(now.elapsed, now.limit), now.limit, words)

    def show(self, name: str, done: float, total: float | None, words: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=total, words=words)
        self.bars.update(self.tasks[name], completed=done, total=total, words=words)
        if time.monotonic() - self.drawn >= _PAUSE or done == total:
            self.bars.refresh()
            self.drawn = time.monotonic()


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[Display | None]:
    """A `Display` while inside, or None where nobody would see it."""
    out = sys.stderr if stream is None else stream
    if out is None or not out.isatty():
        yield None
        return
    shown = Display(Console(file=out))
    with shown.bars:
        yield shown


def say(line: str) -> None:
    """On stderr, where somebody watches a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


class Reporting(Protocol):
    """What tells of its work while it plans."""

    measuring: Callable[[int, int, int], None] | None
    solving: Callable[[Solving], None] | None


@contextmanager
def showing(what: Reporting | None) -> Iterator[None]:
    """Bars of what it does, while inside."""
    with display() if what is not None else nullcontext() as shown:
        if what is None or shown is None:
            yield
            return
        shown.capturing()
        what.measuring, what.solving = shown.measuring, shown.solving
        try:
            yield
        finally:
            what.measuring = what.solving = None
