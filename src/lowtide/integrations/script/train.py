"""How does `lowtide run` train a script? Launch it, with a planner watching, and say at the end what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lowtide.execute.session import Options
from lowtide.integrations.script.launch import Launch, launch
from lowtide.integrations.script.planner import Planner
from lowtide.integrations.script.ranks import is_first
from lowtide.integrations.script.trained import watching
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Trained", "train"]


@dataclass(frozen=True)
class Trained:
    planner: Planner
    ended: SystemExit | None
    """How the script ended, if not simply so."""
    seconds: float

    def line(self) -> str:
        planner, took = self.planner, f"{format_seconds(self.seconds)} in all"
        if not planner.plans:
            return f"nothing was planned, {took}"
        plan = planner.plans[0]
        before = format_bytes(planner.before or plan.unplanned_peak)
        after = format_bytes(planner.after or plan.peak)
        return (
            f"peak {'' if planner.before else '~'}{before} -> {'' if planner.after else '~'}{after} "
            f"(budget {format_bytes(plan.budget)}), step time ~{format_percent(plan.overhead)}, {took}"
        )

    def data(self) -> dict[str, object]:
        planner = self.planner
        plan = planner.plans[0] if planner.plans else None
        return {
            "planned": plan is not None,
            "budget": plan.budget if plan else None,
            "peak_before": planner.before or (plan.unplanned_peak if plan else None),
            "peak_after": planner.after or None,
            "overhead": plan.overhead if plan else None,
            "plans": len(planner.plans),
            "seconds": self.seconds,
        }


def train(what: Launch, options: Options, say: Callable[[str], None]) -> Trained:
    """`say` gets the lines for people; of several processes only the first one's."""
    planner = Planner(options, lambda words: say(words) if is_first() else None, exits=True)
    started = time.perf_counter()
    with watching(planner):
        try:
            ended = launch(what, lambda error: _about_memory(error, planner, what))
        finally:
            planner.close()
    return Trained(planner, ended, time.perf_counter() - started)


def _about_memory(error: BaseException, planner: Planner, what: Launch) -> None:
    """Who held the memory when there was no more, and what would have fitted."""
    if not _is_out_of_memory(error):
        return
    held = sorted(planner.holdings.by_kind(predict=False).items(), key=lambda item: -item[1])
    parts = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in held)
    planner.say(f"out of memory, besides what the step itself had: {parts or 'nothing held'}")
    if planner.plans:
        floor = max(plan.floor for plan in planner.plans)
        planner.say(
            f"the smallest plan needs {format_bytes(floor)}: try --budget {-(-floor // 2**20)}MiB, or a smaller batch"
        )
    else:
        planner.say(f"next: lowtide profile {what.command}")


def _is_out_of_memory(error: BaseException) -> bool:
    words = str(error)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in words or "not enough memory" in words)
    )
