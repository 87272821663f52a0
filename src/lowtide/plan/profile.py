"""Where does the memory of a step go? The object that `lowtide.profile` returns.

A `Profile` is a frozen value: every allocation of an observed step as a `Block`, from when to when it lived, what kind of data it
held, and which layer, op and source line made it. At every moment the blocks that live add up to all that is allocated, so
whatever a table or picture shows follows from them. It prints itself; `plan/format.py` writes and reads its file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from lowtide.draw.charts import timeline_svg
from lowtide.draw.notebook import shown
from lowtide.ir.graph import Graph, Kind
from lowtide.plan.profile_text import profile_text
from lowtide.sim.timeline import Row

__all__ = ["ENCODED", "Block", "Profile", "rows_of"]

ENCODED = "activation encoded"
"""A plan keeps it in a smaller form."""


@dataclass(frozen=True, slots=True)
class Block:
    """Memory of one allocation, or of several alike that live at the same time: from `start` on, until just before `end`."""

    bytes: int
    start: float
    """Seconds since the step began; 0.0 for what was there before."""
    end: float
    """Seconds; the step's length for what stays."""
    kind: str
    """A value of `ir.graph.Kind`, or one of KEPT, ENCODED and WORKSPACE."""
    layer: str
    """`encoder.layers.3.self_attn`; empty if none."""
    op: str = ""
    """`aten.convolution`."""
    source: str = ""
    """`train.py:41`."""


@dataclass(frozen=True)
class Profile:
    """Where the memory of a step goes."""

    model: str
    """Name of the model's class."""
    seconds: float
    """Of the observed step."""
    peak: int
    """Bytes, the allocator's own total."""
    blocks: tuple[Block, ...]
    phases: tuple[tuple[str, float], ...]
    """Names, and the seconds at which they begin: ("forward", 0.0), ("backward", 0.41), ("optimizer", 0.93)."""
    graph: Graph | None = None
    """The captured step with costs and makers, for planning; None where it could not be captured."""
    peaks: tuple[int, ...] = ()
    """Of several steps, in order: what grows."""
    estimated: bool = False
    """From fake tensors: nothing ran."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def moments(self) -> tuple[float, ...]:
        """The seconds at which something begins or ends, in order."""
        return tuple(sorted({0.0} | {t for b in self.blocks for t in (b.start, b.end)}))

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, ...]]:
        """For each kind its bytes from each of `moments` on."""
        index = {moment: i for i, moment in enumerate(self.moments)}
        changes: dict[str, list[int]] = {}
        for block in self.blocks:
            column = changes.setdefault(block.kind, [0] * len(index))
            column[index[block.start]] += block.bytes
            column[index[block.end]] -= block.bytes
        return {kind: tuple(accumulate(column)) for kind, column in changes.items()}

    @cached_property
    def points(self) -> tuple[tuple[float, int], ...]:
        """The whole over time, as `draw/charts.py` draws it: from these seconds on so many bytes are allocated."""
        totals = [sum(column) for column in zip(*self.by_kind.values())]
        found = [(t, n) for t, n in zip(self.moments, totals) if t < self.seconds]
        return (*found, (self.seconds, found[-1][1])) if found else ()

    @cached_property
    def peak_seconds(self) -> float:
        """When the most is allocated, for the first time."""
        return max(self.points, key=lambda point: (point[1], -point[0]), default=(0.0, 0))[0]

    def alive(self, seconds: float) -> tuple[Block, ...]:
        """What is allocated at a moment, largest first."""
        found = [b for b in self.blocks if b.start <= seconds < b.end]
        return tuple(sorted(found, key=lambda b: -b.bytes))

    @cached_property
    def at_peak(self) -> tuple[Row, ...]:
        """What holds the peak, by kind and layer, largest first."""
        return rows_of(self.alive(self.peak_seconds))

    @property
    def other_share(self) -> float:
        """The share of the peak of which nobody knows what it is."""
        known = sum(r.bytes for r in self.at_peak if r.kind != Kind.OTHER)
        return max(0.0, 1 - known / self.peak) if self.peak else 0.0

    def phase_at(self, seconds: float) -> str:
        index = bisect_right([start for _, start in self.phases], seconds) - 1
        return self.phases[index][0] if index >= 0 else ""

    def save(self, path: str | Path) -> Path:
        from lowtide.plan.format import save_profile

        return save_profile(self, Path(path))

    def __str__(self) -> str:
        return profile_text(self)

    def _repr_html_(self) -> str:
        return shown(
            str(self),
            timeline_svg(
                (), self.points, after_label="estimated" if self.estimated else "measured"
            ),
        )


def rows_of(blocks: Iterable[Block]) -> tuple[Row, ...]:
    """Added up by kind and layer, largest first."""
    found: Counter[tuple[str, str]] = Counter()
    for block in blocks:
        found[block.kind, block.layer] += block.bytes
    rows = [Row(kind, layer, size) for (kind, layer), size in found.items() if size]
    return tuple(sorted(rows, key=lambda r: (-r.bytes, r.kind, r.layer)))
