"""`lowtide bench`: the tables that compare, made on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lowtide.cli.answer import Answer, working
from lowtide.errors import OptionError

__all__ = ["BenchCommand"]


class BenchCommand:
    """Compare with others.

    monet: plan the MONeT paper's own instances, in its own memory model, against its published schedules. --data is the folder
    with the instances. One instance is written to -o in the form of the published schedules; --all prints a table.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", choices=("monet",))
        parser.add_argument("--data", metavar="DIR", type=Path, required=True)
        parser.add_argument("--model", default="resnet50")
        parser.add_argument("--profile", default="inplace_conv_multiway_newnode")
        parser.add_argument("--budget", metavar="GB", type=float, default=8.0)
        parser.add_argument("--seconds", metavar="S", type=float, default=60.0)
        parser.add_argument("--all", action="store_true", help="every published model and budget")
        parser.add_argument("-o", "--output", metavar="OUT", type=Path)

    def run(self, options: argparse.Namespace) -> Answer:
        from lowtide.bench.monet_run import plan_all, plan_one, table

        if options.seconds <= 0 or options.budget <= 0:
            raise OptionError("--seconds and --budget are numbers above 0")
        with working(f"planning for {options.seconds:g} s each", quiet=options.json):
            rows = (
                list(plan_all(options.data, options.profile, options.seconds))
                if options.all
                else [
                    plan_one(
                        options.data,
                        options.model,
                        options.profile,
                        options.budget,
                        options.seconds,
                    )
                ]
            )
        if options.output:
            made = [row.schedule for row in rows]
            content = {"schedules": made} if options.all else made[0]
            options.output.write_text(json.dumps(content))
        names = (
            "model",
            "profile",
            "budget_gb",
            "ms",
            "peak_gb",
            "seconds",
            "published_ms",
            "bound_ms",
            "ratio",
        )
        facts = [{name: getattr(row, name) for name in names} for row in rows]
        return Answer(table(rows), {"rows": facts}, markdown=True, wrote=options.output)
