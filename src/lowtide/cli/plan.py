"""`lowtide plan`: from a saved profile or graph and a budget to a saved plan, without torch."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.answer import Answer, working
from lowtide.cli.output import free_output
from lowtide.units import parse_budget

if TYPE_CHECKING:
    from lowtide.plan.plan import Plan

__all__ = ["PlanCommand", "plan_facts", "positive"]


class PlanCommand:
    """Plan a saved profile or graph within a budget.

    FILE is a *.profile.json, a *.graph.json, or a *.plan.json, which carries its graph and is planned anew. The plan is printed and written to
    <stem>.plan.json. Neither torch nor the device is needed.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file", metavar="FILE", type=Path, help="a *.profile.json, *.graph.json or *.plan.json"
        )
        parser.add_argument(
            "--budget",
            required=True,
            help="most bytes a step may have allocated: 6GiB, 1500MB, 6442450944 or 60%% of the unplanned peak",
        )
        parser.add_argument(
            "-o", "--output", metavar="OUT", type=Path, help="where to write the plan"
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite OUT if it exists")
        parser.add_argument(
            "--seconds",
            metavar="S",
            type=positive,
            default=30.0,
            help="how long to search at most (default: %(default)g)",
        )
        parser.add_argument("--solver", metavar="NAME", default="auto", help="default: auto")

    def run(self, options: argparse.Namespace) -> Answer:
        budget = parse_budget(options.budget)
        output = _output(options)

        from lowtide import api

        with working(f"planning {options.file.name}", quiet=options.json):
            plan = api.plan(
                api.load(options.file),
                budget=budget,
                solver=options.solver,
                seconds=options.seconds,
            )
            plan.save(output)
        return Answer(str(plan), plan_facts(plan), wrote=output, next=f"lowtide report {output}")


def plan_facts(plan: Plan) -> dict[str, object]:
    """The numbers of a plan, as every `--json` gives them."""
    names = (
        "budget", "peak", "measured_peak", "seconds", "unplanned_peak", "unplanned_seconds", "overhead", "lower_bound", "gap",
        "status", "solver", "solve_seconds", "floor", "exact",
    )  # fmt: skip
    return {name: getattr(plan, name) for name in names}


def _output(options: argparse.Namespace) -> Path:
    return free_output(options.output or _beside(options.file), force=options.force)


def _beside(file: Path) -> Path:
    stem = file.name.removesuffix(".json")
    for kind in (".profile", ".graph", ".plan"):
        stem = stem.removesuffix(kind)
    return file.with_name(f"{stem}.plan.json")


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError(text)
    return number
