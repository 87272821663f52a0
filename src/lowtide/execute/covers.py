"""What of the model does a plan cover, in words? The sentences of `Plan.covers`.

How many graphs were planned and what share of the unplanned peak each has; where and why Dynamo broke the step; and what ran
outside of all graphs: parameters that get a gradient although no graph was given them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from lowtide.execute.pieces import runs_of
from lowtide.execute.survey import Survey, storage_key
from lowtide.measure.step import start_of_backward
from lowtide.plan.plan import Plan
from lowtide.sim.memory import Timeline
from lowtide.units import format_bytes

__all__ = ["coverage", "uncovered"]

_NAMED = 3
"""Layers and graph breaks named before "and 4 more"."""


def uncovered(model: nn.Module, output: object, survey: Survey) -> dict[str, nn.Parameter]:
    """Parameters that backward from `output` reaches and that no captured graph was given."""
    inside = survey.inputs()
    reached = _reached(start_of_backward(output))
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if id(parameter) in reached and storage_key(parameter) not in inside
    }


def _reached(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Ids of the leaves that backward would give a gradient to."""
    pending = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen: set[object] = set()
    leaves: set[int] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.add(id(leaf))
        pending.extend(n for n, _ in node.next_functions if n is not None)
    return leaves


def coverage(
    plan: Plan, broken: Sequence[str], missed: Mapping[str, nn.Parameter]
) -> tuple[str, ...]:
    words = [_graphs(plan, broken)]
    if missed:
        size = sum(p.nbytes for p in missed.values())
        largest = sorted(missed, key=lambda n: -missed[n].nbytes)
        layers = list(dict.fromkeys(n.rpartition(".")[0] or n for n in largest))
        words.append(
            f"not planned: {len(missed)} parameters ({format_bytes(size)}) get their gradient from code that ran outside "
            f"of the graphs: {_some(layers)}; it is measured, not planned"
        )
    return tuple(words)


def _graphs(plan: Plan, broken: Sequence[str]) -> str:
    count = runs_of(plan.graph)
    breaks = f"; breaks at {_some(list(dict.fromkeys(broken)))}" if broken else ""
    if count == 1:
        return f"covers 1 graph{breaks}"
    shares = " + ".join(f"{100 * s:.0f}%" for s in _shares(plan.unplanned, count))
    captured = len({s.name for s in plan.graph.segments}) // 2
    again = f" ({captured} captured)" if captured < count else ""
    return (
        f"covers {count} graphs{again}, planned as one, with {shares} of the unplanned peak{breaks}"
    )


def _shares(timeline: Timeline, count: int) -> list[float]:
    """What each run has at the unplanned peak, workspace of the running op included, as a share of that peak."""
    found = [0] * count
    if timeline.moments:
        moment = timeline.moments[timeline.peak_moment]
        for storage, size in timeline.alive(timeline.peak_moment).items():
            found[_run(storage)] += size
        found[_run(moment.op)] += timeline.graph.op[moment.op].workspace
    return [size / timeline.peak for size in found]


def _run(name: str) -> int:
    return int(name.partition("/")[0])


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
