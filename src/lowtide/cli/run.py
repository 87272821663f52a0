"""`lowtide run`: an unmodified training script, within a budget."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.answer import Answer
from lowtide.cli.plan import positive
from lowtide.errors import OptionError
from lowtide.units import parse_budget

if TYPE_CHECKING:
    from lowtide.integrations.script.launch import Launch
    from lowtide.integrations.script.train import Trained
    from lowtide.plan.plan import Plan

__all__ = ["RunCommand"]


class RunCommand:
    """Train an unmodified script within a budget.

    The script runs as under `python`: everything after its name belongs to it, and its output, exceptions and exit status are its own. The modules that
    it trains are found, planned at their first training step, and train on with the same numbers. What cannot be planned runs as it was, and one line
    on stderr says so. -o keeps the plan in a file, which --plan runs again without planning. Inside torchrun: `torchrun --nproc-per-node 2 -m lowtide run --budget 6GiB train.py`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--budget",
            help="most bytes a step may have allocated: 6GiB, 1500MB, 6442450944 or 60%% of the unplanned peak",
        )
        parser.add_argument(
            "--allow", metavar="WORD", action="append", default=[], help="rounding, lossy: give up exact gradients; move, sparse: keep them exact"
        )  # fmt: skip
        parser.add_argument("--seconds", metavar="S", type=positive, default=10.0, help="how long to search for a plan at most (default: %(default)g)")  # fmt: skip
        parser.add_argument("--plan", metavar="FILE", type=Path, help="run this plan, instead of making one for --budget")  # fmt: skip
        parser.add_argument("--verify", metavar="N", type=_calls, default=0, help="compare outputs and gradients of the first N planned calls with the script's own code")  # fmt: skip
        parser.add_argument("--steps", metavar="N", type=_calls, default=0, help="stop after N steps under the plan, and say how long they took")  # fmt: skip
        parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="write the plan to this file")  # fmt: skip
        parser.add_argument("-f", "--force", action="store_true", help="overwrite OUT if it exists")
        parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")  # fmt: skip
        parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its own arguments")  # fmt: skip

    def run(self, options: argparse.Namespace) -> Answer:
        if not options.script:
            raise OptionError("there is nothing to run: lowtide run --budget 6GiB train.py")
        if (options.budget is None) == (options.plan is None):
            raise OptionError("give either --budget SIZE or --plan FILE")
        budget = parse_budget(options.budget) if options.budget is not None else None
        if options.output is not None and options.output.exists() and not options.force:
            raise OptionError(f"{options.output} exists: -f overwrites it")

        from lowtide import api
        from lowtide.integrations.script.launch import Launch
        from lowtide.integrations.script.ranks import is_first
        from lowtide.integrations.script.train import train

        target, *arguments = options.script
        what = Launch(target, tuple(arguments), options.module)
        plan = None if options.plan is None else _plan(options.plan)
        asked = api.make_options(
            budget or (plan.budget if plan else 0), allow=options.allow, seconds=options.seconds
        )
        done = train(what, asked, _say, plan, options.verify, options.steps)
        if done.planner.stopped is not None:
            raise done.planner.stopped
        if is_first():
            _end(done, what, options)
        if done.ended is not None:
            raise done.ended
        return Answer("", said=True)


def _calls(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _plan(file: Path) -> Plan:
    from lowtide import api
    from lowtide.plan.plan import Plan

    found = api.load(file)
    if not isinstance(found, Plan):
        raise OptionError(f"{file} holds no plan: `lowtide run -o {file}` writes one")
    return found


def _say(words: str) -> None:
    print(f"lowtide: {words}", file=sys.stderr, flush=True)


def _end(done: Trained, what: Launch, options: argparse.Namespace) -> None:
    """On stderr: stdout is the script's."""
    sys.stdout.flush()
    following = f"next: lowtide profile {what.command}"
    plan = done.planner.main_plan
    if options.output is not None and plan is not None:
        plan.save(options.output)
        following = f"wrote {options.output}     next: lowtide report {options.output}"
    line = json.dumps(done.data()) if options.json else f"lowtide: {done.line()}     {following}"
    print(line, file=sys.stderr, flush=True)
