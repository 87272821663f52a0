"""Which ways to get a tensor back does the planner know, besides keeping and recomputing? All of them, on one screen."""

from __future__ import annotations

from lowtide.rules.base import Exactness, Rule, add_makers
from lowtide.rules.replay import Replay
from lowtide.rules.split import SplitBackward

__all__ = ["DEFAULT_RULES", "Exactness", "Rule", "add_makers"]

DEFAULT_RULES: tuple[Rule, ...] = (
    Replay(),
    SplitBackward(),
)
