"""`lowtide report`: a saved file as text."""

from __future__ import annotations

import argparse
from pathlib import Path

from lowtide.cli.answer import Answer
from lowtide.cli.plan import plan_facts
from lowtide.cli.profile_facts import profile_facts

__all__ = ["ReportCommand"]


class ReportCommand:
    """Print a saved plan, profile or graph.

    A plan or profile is printed as it was when it was made, a graph op by op. Neither torch nor the device is needed.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file", metavar="FILE", type=Path, help="a *.plan.json, *.profile.json or *.graph.json"
        )

    def run(self, options: argparse.Namespace) -> Answer:
        from lowtide import api
        from lowtide.ir.text import format_graph
        from lowtide.plan.plan import Plan
        from lowtide.plan.profile import Profile

        loaded = api.load(options.file)
        if isinstance(loaded, Plan):
            return Answer(str(loaded), {"kind": "plan", **plan_facts(loaded)})
        if isinstance(loaded, Profile):
            return Answer(str(loaded), {"kind": "profile", **profile_facts(loaded)})
        facts = {"kind": "graph", "ops": len(loaded.ops), "values": len(loaded.values)}
        return Answer(format_graph(loaded), facts, next=f"lowtide plan {options.file} --budget 60%")
