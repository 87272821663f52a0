"""How does `lowtide run` train a script? Launch it, with a planner watching, and say at the end what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lowtide.execute.session import Options
from lowtide.integrations.script.launch import Launch, launch
from lowtide.integrations.script.planner import Planner
from lowtide.integrations.script.ranks import is_first
from lowtide.integrations.script.trained import watching
from lowtide.plan.infeasible import floor_parts
from lowtide.plan.plan import Plan
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
        if planner.pace.wanted and planner.pace.seconds is not None:
            took += f", stopped after {planner.pace.wanted} planned steps of {format_seconds(planner.pace.seconds)}"
        plan = planner.main_plan
        if plan is None:
            return f"nothing was planned, {took}"
        before = format_bytes(planner.before or plan.unplanned_peak)
        after = format_bytes(planner.after or plan.peak)
        return (
            f"peak {'' if planner.before else '~'}{before} -> {'' if planner.after else '~'}{after} "
            f"(budget {format_bytes(plan.budget)}), step time ~{format_percent(plan.overhead)}, {took}"
            f"{'; ' if planner.verifier.wanted else ''}{planner.verifier.words()}"
        )

    def data(self) -> dict[str, object]:
        planner = self.planner
        plan = planner.main_plan
        return {
            "planned": plan is not None,
            "budget": plan.budget if plan else None,
            "peak_before": planner.before or (plan.unplanned_peak if plan else None),
            "peak_after": planner.after or None,
            "overhead": plan.overhead if plan else None,
            "plans": len(planner.past) + len(planner.plans),
            "step_seconds": planner.pace.seconds,
            "verified_calls": planner.verifier.compared,
            "verified_error": planner.verifier.error if planner.verifier.compared else None,
            "seconds": self.seconds,
        }


def train(
    what: Launch,
    options: Options,
    say: Callable[[str], None],
    plan: Plan | None = None,
    verify: int = 0,
    steps: int = 0,
) -> Trained:
    """`say` gets the lines for people; of several processes only the first one's. `plan`: one to run instead of making one. `verify`: how many planned
    calls are compared with the script's own code. `steps`: after how many planned ones to stop."""

    def once(words: str) -> None:
        if is_first():
            say(words)

    planner = Planner(options, once, plan=plan, verify=verify, steps=steps, exits=True)
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
    if not planner.plans:
        held = planner.holdings.by_kind(predict=False)
        planner.say(f"out of memory, besides what the step itself had: {_parts(held)}")
        planner.say(f"next: lowtide profile --fake {what.command}")
        return
    largest = max(planner.plans, key=lambda plan: plan.peak)
    planner.say(
        f"out of memory. At its peak the planned step has {format_bytes(largest.peak)}: {_parts(floor_parts(largest.timeline))}"
    )
    floor = max(plan.floor for plan in planner.plans)
    planner.say(
        f"the smallest plan found needs {format_bytes(floor)}: try --budget {-(-floor // 2**20)}MiB, or a smaller batch"
    )


def _parts(sizes: Mapping[str, int]) -> str:
    """The largest first."""
    found = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in found) or "nothing held"


def _is_out_of_memory(error: BaseException) -> bool:
    words = str(error)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in words or "not enough memory" in words)
    )
