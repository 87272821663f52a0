"""`lowtide run`: an unmodified training script, within a budget."""

from __future__ import annotations

import argparse
import json
import sys

from lowtide.cli.answer import Answer
from lowtide.cli.plan import positive
from lowtide.errors import OptionError
from lowtide.units import parse_budget

__all__ = ["RunCommand"]


class RunCommand:
    """Train an unmodified script within a budget.

    The script runs as under `python`: everything after its name belongs to it, and its output, exceptions and exit status are its own. The modules that
    it trains are found, planned at their first training step, and train on with the same numbers. What cannot be planned runs as it was, and one line
    on stderr says so. Inside torchrun: `torchrun --nproc-per-node 2 -m lowtide run --budget 6GiB train.py`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--budget",
            required=True,
            help="most bytes a step may have allocated: 6GiB, 1500MB, 6442450944 or 60%% of the unplanned peak",
        )
        parser.add_argument(
            "--allow", metavar="WORD", action="append", default=[], help="rounding, lossy: give up exact gradients"
        )  # fmt: skip
        parser.add_argument("--seconds", metavar="S", type=positive, default=10.0, help="how long to search for a plan at most (default: %(default)g)")  # fmt: skip
        parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")  # fmt: skip
        parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its own arguments")  # fmt: skip

    def run(self, options: argparse.Namespace) -> Answer:
        if not options.script:
            raise OptionError("there is nothing to run: lowtide run --budget 6GiB train.py")
        budget = parse_budget(options.budget)

        from lowtide import api
        from lowtide.integrations.script.launch import Launch
        from lowtide.integrations.script.ranks import is_first
        from lowtide.integrations.script.train import train

        target, *arguments = options.script
        what = Launch(target, tuple(arguments), options.module)
        asked = api.make_options(budget, allow=options.allow, seconds=options.seconds)
        done = train(what, asked, _say)
        if done.planner.stopped is not None:
            raise done.planner.stopped
        if is_first():
            _end(json.dumps(done.data()) if options.json else f"lowtide: {done.line()}", what.command, quiet=options.json)  # fmt: skip
        if done.ended is not None:
            raise done.ended
        return Answer("", said=True)


def _say(words: str) -> None:
    print(f"lowtide: {words}", file=sys.stderr, flush=True)


def _end(line: str, command: str, *, quiet: bool) -> None:
    """On stderr: stdout is the script's."""
    sys.stdout.flush()
    following = "" if quiet else f"     next: lowtide profile {command}"
    print(f"{line}{following}", file=sys.stderr, flush=True)
