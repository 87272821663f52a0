"""How does a plan of ours read as a schedule of the MONeT paper? In the form of the published example_schedules.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowtide.bench.monet import Instance
from lowtide.solve.play import Answers
from lowtide.solve.search import Search

__all__ = ["as_schedule"]

Json = dict[str, Any]
_IN_PLACE = -2


def as_schedule(instance: Instance, search: Search, answers: Answers, budget_gb: float) -> Json:
    record = search.player.buffers.sweeps
    record.recording[0] = True
    search.player.play(answers.state, answers.choice)
    record.recording[0] = False
    kept, computed, chosen = record.kept, record.made, record.chosen
    names, loss = instance.names, len(instance.names) - 1
    steps = []
    for t in range(len(instance.backward) + 1):
        compute = [
            _computed(instance, j, int(chosen[t, j]), bool(computed[t, j + 1]))
            for j in np.flatnonzero(computed[t, :loss]).tolist()
            if names[j].isdigit()
        ]
        keep = [_spelt(names[j]) for j in np.flatnonzero(kept[t + 1]).tolist()]
        step: Json = {"step": t, "compute": compute, "keep": keep}
        if t:
            op, part, algorithms = instance.backward[t - 1]
            step["recompute_loss"] = bool(computed[t, loss])
            step["backward"] = {"op": op, "part": part}
            if algorithms:
                step["backward"]["algorithm"] = int(chosen[t, loss + 1])
            else:
                step["backward"]["choice"] = _choice(instance, t, answers)
        steps.append(step)
    return {
        "model": instance.model,
        "profile": instance.profile,
        "budget_gb": budget_gb,
        "steps": steps,
    }


def _computed(instance: Instance, node: int, option: int, next_made: bool) -> Json:
    sweeps = instance.sweeps
    said: Json = {"op": int(instance.names[node])}
    if option == _IN_PLACE:
        said["inplace"] = True
    elif sweeps.options0[node + 1] - sweeps.options0[node] > 1:
        said["algorithm"] = option
    if sweeps.has_extra[node] and next_made:
        said["intermediate"] = True
    return said


def _choice(instance: Instance, sweep: int, answers: Answers) -> int:
    """Which of its forms the backward op of a sweep has."""
    problem = instance.problem
    op = int(problem.order[np.flatnonzero(instance.sweeps.sweep == sweep)[0]])
    return int(answers.choice[len(problem.storage_names) + op]) % len(problem.ways[op])


def _spelt(name: str) -> int | str:
    return int(name) if name.isdigit() else name
