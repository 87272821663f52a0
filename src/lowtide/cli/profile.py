"""`lowtide profile`: where the memory of an unmodified script goes."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lowtide.cli.answer import Answer, show
from lowtide.cli.output import free_output
from lowtide.cli.profile_facts import profile_facts
from lowtide.errors import OptionError

__all__ = ["ProfileCommand"]


class ProfileCommand:
    """Observe where the memory of an unmodified script goes.

    The script runs as under `python`: everything after its name belongs to it. Its first training step is observed, then it is stopped. The summary
    is printed and the profile written to <script>.profile.json, with the step's graph and measured costs where it could be captured, so that
    `lowtide plan` needs neither torch nor the device.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", metavar="N", type=_count, default=1, help="observe N steps, show the last and all peaks (default: 1)")  # fmt: skip
        parser.add_argument("--go-on", action="store_true", help="let the script run to its end afterwards")  # fmt: skip
        parser.add_argument("--no-graph", action="store_true", help="do not capture and price the step for planning")  # fmt: skip
        parser.add_argument("--fake", action="store_true", help="estimate without running: no memory for weights, no device")  # fmt: skip
        parser.add_argument("--device", metavar="NAME", default="cpu", help="with --fake: whose data sheet prices ops, such as A100 (default: cpu)")  # fmt: skip
        parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="where to write the profile")  # fmt: skip
        parser.add_argument("-f", "--force", action="store_true", help="overwrite OUT if it exists")
        parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")  # fmt: skip
        parser.add_argument("script", metavar="SCRIPT ...", nargs=argparse.REMAINDER, help="the script and its own arguments")  # fmt: skip

    def run(self, options: argparse.Namespace) -> Answer:
        if not options.script:
            raise OptionError("there is nothing to profile: lowtide profile train.py")
        from lowtide.integrations.script.launch import Launch

        target, *arguments = options.script
        what = Launch(target, tuple(arguments), options.module)
        name = options.output or Path(f"{what.name}.profile.json")
        # The script may go elsewhere.
        output = free_output(name, force=options.force).absolute()
        with _quiet_allocator():
            from lowtide.integrations.script.observed import fake_script, observe_script
        with _stdout_kept(options.json):
            if options.fake:
                done = fake_script(what, options.device)
            else:
                done = observe_script(what, steps=options.steps, go_on=options.go_on, graph=not options.no_graph)  # fmt: skip
        profile = done.profile
        if os.environ.get("RANK", "0") == "0":
            profile.save(output)
        planned = f"lowtide plan {name} --budget 60%"
        following = planned if profile.graph is not None else f"lowtide report {name}"
        answer = Answer(str(profile), profile_facts(profile), wrote=name, next=following)
        if done.ended is not None:  # the script's own status is ours
            show(answer, as_json=options.json)
            raise done.ended
        return answer


def _stdout_kept(wanted: bool) -> contextlib.AbstractContextManager[object]:
    """With --json, what the script prints goes to stderr: stdout is one JSON object."""
    return contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext()


@contextlib.contextmanager
def _quiet_allocator() -> Iterator[None]:
    """PyTorch's allocator warns of each session that does not see all memory from its beginning; it reads this when it is loaded."""
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "ERROR")
    yield
    if before is None:
        del os.environ[name]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
