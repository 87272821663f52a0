"""What does each budget cost in time? The object that `lowtide.frontier` returns: one plan for each of a dozen budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.draw.frontiers import Panel, frontiers_svg
from lowtide.draw.notebook import shown
from lowtide.errors import OptionError
from lowtide.plan.plan import Plan
from lowtide.units import Budget, format_bytes, format_percent, parse_budget

__all__ = ["Frontier"]

_WIDTH = 40


@dataclass(frozen=True)
class Frontier:
    points: tuple[Plan, ...]
    """From the smallest budget to the one where everything is kept."""

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def at(self, budget: str | int | Budget) -> Plan:
        """The fastest plan of these within a budget."""
        limit = parse_budget(budget).bytes_of(self.points[-1].unplanned_peak)
        within = [p for p in self.points if p.peak <= limit]
        if not within:
            least = min(p.peak for p in self.points)
            raise OptionError(
                f"no point of this frontier is within {format_bytes(limit)}; the smallest has {format_bytes(least)}"
            )
        return min(within, key=lambda p: p.seconds)

    def __str__(self) -> str:
        most = max(p.overhead for p in self.points)
        whole = self.points[-1].unplanned_peak
        lines = ["    budget          peak  step time"]
        for plan in reversed(self.points):
            bar = "#" * round(_WIDTH * max(0.0, plan.overhead) / most) if most > 0 else ""
            lines.append(
                f"{format_bytes(plan.budget):>10} {format_bytes(plan.peak):>10} {100 * plan.peak / whole:3.0f}%  "
                f"{format_percent(plan.overhead):>8}  {bar}".rstrip()
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        whole = self.points[-1].unplanned_peak
        line = [(p.peak / whole, p.overhead) for p in self.points]
        panel = Panel("memory and time", f"100%: {format_bytes(whole)}", {"plans": line})
        return shown(str(self), frontiers_svg([panel], "What each budget costs"), width=360)
