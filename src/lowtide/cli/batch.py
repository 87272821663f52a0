"""`lowtide batch`: the largest batch of an unmodified script that a budget allows, and the fastest."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict

from lowtide.cli.answer import Answer
from lowtide.cli.plan import positive
from lowtide.errors import BudgetError, LowtideError, OptionError, VerificationError
from lowtide.plan.sizes import Timed, best_size, largest_size, size_table, sizes_to_time
from lowtide.units import format_seconds, parse_budget

__all__ = ["BatchCommand"]

_PLACE = "{}"
_USE = "lowtide batch --budget 6GiB train.py --batch-size {}"


class BatchCommand:
    """Find the largest and the fastest batch of a script.

    {} among the script's own arguments stands for the batch size. The script runs with one size after another under `lowtide run`, each for a few
    planned steps: first to find the largest that fits the budget, then to time that one and smaller ones.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--budget", required=True, help="most bytes a step may have allocated: 6GiB, 1500MB or 6442450944")  # fmt: skip
        parser.add_argument("--start", metavar="B", type=int, default=8, help="the first size (default: %(default)s)")  # fmt: skip
        parser.add_argument("--most", metavar="B", type=int, default=65536, help="the last size (default: %(default)s)")  # fmt: skip
        parser.add_argument("--steps", metavar="N", type=int, default=5, help="time N steps of each (default: %(default)s)")  # fmt: skip
        parser.add_argument("--seconds", metavar="S", type=positive, default=10.0, help="how long to search for each plan at most (default: %(default)g)")  # fmt: skip
        parser.add_argument("--allow", metavar="WORD", action="append", default=[], help="rounding, lossy: give up exact gradients; move, sparse: keep them exact")  # fmt: skip
        parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")  # fmt: skip
        parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its own arguments, with {} for the batch")  # fmt: skip

    def run(self, options: argparse.Namespace) -> Answer:
        if not any(_PLACE in word for word in options.script):
            raise OptionError(f"no argument of the script is {_PLACE}, the batch: {_USE}")
        if options.steps < 1:
            raise OptionError("--steps is a number above 0")
        if parse_budget(options.budget).fraction is not None:
            raise OptionError(
                f"--budget {options.budget} is a share of a step that depends on the batch: say it in bytes"
            )
        trials = _Trials(options)
        largest = largest_size(trials.fits, options.start, options.most)
        if not largest:
            raise BudgetError(
                "not even a batch of 1 fits the budget\n     more  lowtide explain F012",
                floor=trials.floor,
            )
        timed = [trials.of(size) for size in reversed(sizes_to_time(largest))]
        found = [one for one in timed if one is not None]
        best = best_size(found)
        command = " ".join(options.script).replace(_PLACE, str(best))
        facts = {"largest": largest, "best": best, "timed": [asdict(one) for one in found]}
        return Answer(size_table(found), facts, next=f"lowtide run --budget {options.budget} {'-m ' if options.module else ''}{command}")  # fmt: skip


class _Trials:
    """Each size is tried once, in a process of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.done: dict[int, Timed | None] = {}
        self.floor = 0

    def fits(self, size: int) -> bool:
        return self.of(size) is not None

    def of(self, size: int) -> Timed | None:
        if size not in self.done:
            self.done[size] = self.run(size)
            found = self.done[size]
            words = "does not fit" if found is None else f"{format_seconds(found.seconds)} a step, {found.per_second:.1f} samples/s"  # fmt: skip
            if not self.options.json:
                print(f"batch {size}: {words}", file=sys.stderr, flush=True)
        return self.done[size]

    def run(self, size: int) -> Timed | None:
        options = self.options
        ours = ["--json", "--budget", options.budget, "--steps", str(options.steps), "--seconds", str(options.seconds)]  # fmt: skip
        ours += [part for word in options.allow for part in ("--allow", word)]
        ours += ["-m"] if options.module else []
        script = [word.replace(_PLACE, str(size)) for word in options.script]
        command = [sys.executable, "-m", "lowtide", "run", *ours, *script]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode in (BudgetError.exit_code, VerificationError.exit_code):
            self.floor = _refusal_floor(done.stdout) or self.floor
            return None
        facts = _last_object(done.stderr)
        if done.returncode or not facts.get("planned") or not facts.get("step_seconds"):
            raise LowtideError(_why(done, size, facts, options.steps))
        return Timed(size, facts["step_seconds"], int(facts["peak_after"] or facts["budget"]), facts["overhead"])  # fmt: skip


def _last_object(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        return dict(json.loads(lines[-1])) if lines else {}
    except ValueError:
        return {}


def _refusal_floor(text: str) -> int:
    """What `run --json` printed as its error, after whatever the script printed."""
    start = text.rfind('{\n  "error"')
    try:
        return int(json.loads(text[start:])["error"].get("floor", 0)) if start >= 0 else 0
    except (ValueError, KeyError):
        return 0


def _why(
    done: subprocess.CompletedProcess[str], size: int, facts: dict[str, float], steps: int
) -> str:
    if not done.returncode and facts:
        short = f"the script ended before {steps} steps ran under a plan: give it more data or more steps"
        return f"a batch of {size} could not be timed: {short if facts.get('planned') else 'nothing was planned'}"
    tail = "\n".join(f"     {line}" for line in done.stderr.splitlines()[-4:])
    return f"the script failed with a batch of {size}, exit status {done.returncode}\n{tail}"
