"""What does a planner answer? One type for all of them; "infeasible" and "time is up" are answers, not exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lowtide.ir.program import Program

__all__ = ["Result", "Status"]


class Status(StrEnum):
    OPTIMAL = "optimal"
    """Proved: no program within the budget is faster."""
    FEASIBLE = "feasible"
    """Within the budget; the time limit ended the search."""
    INFEASIBLE = "infeasible"
    """No program within the budget was found; the program given is the smallest."""


@dataclass(frozen=True)
class Result:
    status: Status
    program: Program
    seconds: float
    peak: int
    bound: float
    """Seconds that no program within the budget can beat."""
    floor: int
    """The smallest peak found for any program."""
    solver: str
    solve_seconds: float
    why: str = ""
    """One sentence: what was done and why."""

    @property
    def gap(self) -> float:
        """How far the program may be from the best possible: (seconds - bound) / bound."""
        return max(0.0, self.seconds / self.bound - 1) if self.bound > 0 else 0.0
