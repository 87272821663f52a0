"""How do training frameworks train within a budget? Their callbacks open and close the same planner that `lowtide run` uses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack

from lowtide.api import make_options
from lowtide.integrations.script.planner import Planner
from lowtide.integrations.script.trained import watching
from lowtide.plan.plan import Plan
from lowtide.units import Budget

__all__ = ["TrainingBudget"]

log = logging.getLogger("lowtide")


class TrainingBudget:
    """From `begin` to `end` every module that is trained is planned. Lines for people go to the log `lowtide`."""

    def __init__(
        self, budget: str | int | Budget, *, allow: Sequence[str] = (), seconds: float = 30.0
    ) -> None:
        self.options = make_options(budget, allow=allow, seconds=seconds)
        self.planner: Planner | None = None
        self.open = ExitStack()

    def begin(self) -> None:
        self.end()
        self.planner = Planner(self.options, log.warning)
        self.open.callback(self.planner.close)
        self.open.enter_context(watching(self.planner))

    def end(self) -> None:
        self.open.close()

    @property
    def plan(self) -> Plan | None:
        """Of the round with the highest peak, once there is one."""
        return self.planner.plans[0] if self.planner is not None and self.planner.plans else None

    @property
    def measured_peak(self) -> int | None:
        return self.planner.after or None if self.planner is not None else None
