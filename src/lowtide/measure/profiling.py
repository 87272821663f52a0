"""What does an observed step amount to? From the lives of its allocations to a `Profile`.

The last step that was observed is the one shown: whatever grows has grown by then. The peaks of all are kept beside it.
"""

from __future__ import annotations

import platform
from collections import Counter

import torch

from lowtide.errors import LowtideError
from lowtide.ir.graph import Kind
from lowtide.measure.lives import Life, Lives
from lowtide.measure.observe import Observation
from lowtide.plan.profile import ENCODED, Block, Profile
from lowtide.sim.timeline import KEPT, WORKSPACE

__all__ = ["profile_of"]


def profile_of(observation: Observation, model: str) -> Profile:
    lives = observation.analysed()
    if not lives.steps:
        raise LowtideError(
            "nothing was observed: has another torch profiler been started meanwhile?"
        )
    start = lives.steps[-1]
    end = max(observation.end, start + 1)
    seconds = (end - start) / 1e9
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(observation.device),
        "threads": str(torch.get_num_threads()),
    }
    return Profile(
        model=model,
        seconds=seconds,
        peak=lives.peaks[-1],
        blocks=_blocks(lives, start, end),
        phases=_phases(lives, start, end),
        peaks=tuple(lives.peaks),
        environment=environment,
    )


def _blocks(lives: Lives, start: int, end: int) -> tuple[Block, ...]:
    """Those that live in this step; alike ones that live at the same time are one."""
    found: Counter[tuple[int, int, str, str, str, str]] = Counter()
    for life in lives.all:
        first = max(life.start, start)
        last = end if life.end is None else min(life.end, end)
        if first < last:
            key = (first, last, _kind(life), life.layer, _op(life.op), life.source)
            found[key] += life.bytes
    return tuple(
        Block(size, (first - start) / 1e9, (last - start) / 1e9, *words)
        for (first, last, *words), size in sorted(found.items())
    )


def _kind(life: Life) -> str:
    if life.kind:
        return str(life.kind)
    if life.workspace:
        return WORKSPACE
    if life.kept:
        return ENCODED if life.encoded else KEPT
    known = life.op or life.layer or life.source
    return str(Kind.TEMPORARY if known else Kind.OTHER)


def _op(name: str) -> str:
    """`aten.convolution`, as in graphs."""
    return name.replace("::", ".")


def _phases(lives: Lives, start: int, end: int) -> tuple[tuple[str, float], ...]:
    inside = [(name, (time - start) / 1e9) for name, time in lives.phases if start <= time < end]
    return tuple((name, max(0.0, at)) for name, at in inside if name != "end")
