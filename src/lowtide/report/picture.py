"""What does a report show? One plain object of everything that page, terminal and JSON say, whatever file it came from.

Goes in: a `Plan`, a `Profile` or a `Graph`, and perhaps a frontier and an observed step of a plan. Comes out: a `Picture`. Nothing
here knows how it is drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowtide.ir.graph import Graph
from lowtide.ir.program import unplanned
from lowtide.plan.folding import Folded
from lowtide.plan.plan import Plan
from lowtide.plan.profile import Block, Profile
from lowtide.report.changes import Change, changes
from lowtide.report.curve import Curve
from lowtide.report.kinds import in_order
from lowtide.report.sampling import Sampled, fold_all, sample
from lowtide.report.steps import Step, aligned, observed, simulated
from lowtide.report.words import Fact, Verdict, facts_of, verdict_of
from lowtide.sim.memory import simulate

__all__ = ["COLUMNS", "Holder", "Picture", "picture_of"]

COLUMNS = 600
"""Of the timeline: about as many as a page has pixels for it."""


@dataclass(frozen=True)
class Holder:
    """A layer, or repeated ones, and what it holds at the peak."""

    layer: str
    kinds: Mapping[str, int]
    members: tuple[Holder, ...] = ()
    """The layers that were folded, or of one layer the ops and lines that made what it holds: the largest first."""

    @property
    def bytes(self) -> int:
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Picture:
    title: str
    kind: str
    """`plan`, `profile` or `graph`."""
    verdict: Verdict
    steps: tuple[Sampled, ...]
    """The one that is shown first, and perhaps the one it is compared with."""
    holders: tuple[tuple[Holder, ...], ...]
    """For each step who holds its peak, the largest first."""
    span: float
    """Seconds that the timeline shows."""
    budget: int | None
    observed: tuple[tuple[float, int], ...]
    """A real step of the plan, stretched to the predicted times: seconds and bytes from then on."""
    curve: Curve | None
    changes: tuple[Change, ...]
    facts: tuple[tuple[str, tuple[Fact, ...]], ...]
    """What the numbers rest on, under headings."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that are in any step, as they are stacked."""
        return in_order(kind for step in self.steps for kind in step.kinds)


def picture_of(
    source: Graph | Plan | Profile,
    title: str,
    *,
    curve: Curve | None = None,
    measured: Profile | None = None,
    file: Mapping[str, str] | None = None,
) -> Picture:
    """`file` are facts of the file it came from."""
    steps = _steps(source)
    span = max(step.seconds for step in steps)
    folded = fold_all(steps)
    sampled = tuple(sample(step, folded, span=span, columns=COLUMNS) for step in steps)
    return Picture(
        title=title,
        kind=type(source).__name__.lower(),
        verdict=verdict_of(source),
        steps=sampled,
        holders=tuple(_holders(step, folded) for step in sampled),
        span=span,
        budget=source.budget if isinstance(source, Plan) else None,
        observed=aligned(measured, steps[0]) if measured is not None else (),
        curve=curve,
        changes=changes(source) if isinstance(source, Plan) else (),
        facts=facts_of(source, measured, file or {}),
    )


def _steps(source: Graph | Plan | Profile) -> tuple[Step, ...]:
    if isinstance(source, Plan):
        return simulated(source.timeline, "planned"), simulated(source.unplanned, "unplanned")
    if isinstance(source, Profile):
        return (observed(source, "estimated" if source.estimated else "observed"),)
    return (simulated(simulate(source, unplanned(source)), "unplanned"),)


def _holders(step: Sampled, folded: Sequence[Folded]) -> tuple[Holder, ...]:
    by_layer: dict[str, list[Block]] = defaultdict(list)
    for block in step.at_peak:
        by_layer[block.layer].append(block)
    found = []
    for row in folded:
        blocks = [block for layer in row.layers for block in by_layer[layer]]
        if blocks:
            members = _members(blocks, _name if len(row.layers) > 1 else _maker)
            found.append(Holder(row.name, _by_kind(blocks), members if len(members) > 1 else ()))
    return _largest_first(found)


def _members(blocks: Iterable[Block], name: Callable[[Block], str]) -> tuple[Holder, ...]:
    named: dict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        named[name(block)].append(block)
    return _largest_first(Holder(name, _by_kind(found)) for name, found in named.items())


def _name(block: Block) -> str:
    return block.layer


def _maker(block: Block) -> str:
    return " ".join(filter(None, (block.op, block.source))) or "there before the step"


def _by_kind(blocks: Iterable[Block]) -> Counter[str]:
    found: Counter[str] = Counter()
    for block in blocks:
        found[block.kind] += block.bytes
    return found


def _largest_first(found: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple(sorted(found, key=lambda h: (-h.bytes, h.layer)))
