"""The command `lowtide`: a list of verbs, and the one place where errors become exit codes.

A verb is an object that meets `Command`: its class name is the verb, its docstring the help. It gets parsed options and returns an
`Answer`, which is printed here, as text or (with `--json`) as one JSON object. Whatever is heavy is imported inside a verb's `run`, so that
`lowtide --help` starts at once: neither torch nor numpy is imported for it.

Exit codes: 0 fits, 1 failure, 2 usage, 3 budget infeasible, 4 verification failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from inspect import cleandoc
from typing import Protocol

from lowtide import __version__
from lowtide.cli.answer import Answer, show, show_error
from lowtide.cli.batch import BatchCommand
from lowtide.cli.bench import BenchCommand
from lowtide.cli.cache import CacheCommand
from lowtide.cli.explain import ExplainCommand
from lowtide.cli.plan import PlanCommand
from lowtide.cli.profile import ProfileCommand
from lowtide.cli.report import ReportCommand
from lowtide.cli.run import RunCommand
from lowtide.errors import LowtideError

__all__ = ["COMMANDS", "Command", "main"]

_ABOUT = "Fits PyTorch training into a byte budget, at the least cost in time, with the same bits."
_EPILOG = """
example:
  lowtide profile train.py --lr 1e-4                where its memory goes; writes train.profile.json
  lowtide plan train.profile.json --budget 6GiB     what that budget costs; writes train.plan.json
  lowtide run --budget 6GiB train.py --lr 1e-4      trains it within 6 GiB

exit codes:
  0 fits   1 failure   2 usage   3 budget infeasible   4 verification failed
"""


class Command(Protocol):
    """One verb. The class is named `<Verb>Command`; the first line of its docstring is the short help."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own arguments."""

    def run(self, options: argparse.Namespace) -> Answer:
        """Do it. Failures are raised as `LowtideError`."""


COMMANDS: tuple[Command, ...] = (
    ProfileCommand(),
    PlanCommand(),
    RunCommand(),
    BatchCommand(),
    ReportCommand(),
    BenchCommand(),
    ExplainCommand(),
    CacheCommand(),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        show(options.command.run(options), as_json=options.json)
    except LowtideError as error:
        return show_error(error, as_json=options.json)
    except BrokenPipeError:  # the reader has seen enough: `lowtide explain F012 | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        return show_error(LowtideError(f"{about}{error.strerror or error}"), as_json=options.json)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


def verb(command: Command) -> str:
    return type(command).__name__.removesuffix("Command").lower()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lowtide",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lowtide {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for command in COMMANDS:
        words = cleandoc(type(command).__doc__ or "")
        one = verbs.add_parser(
            verb(command),
            help=words.splitlines()[0].rstrip("."),
            description=words,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.prepare_parser(one)
        one.add_argument(
            "--json", action="store_true", help="print one JSON object instead of text"
        )
        one.set_defaults(command=command)
    return parser
