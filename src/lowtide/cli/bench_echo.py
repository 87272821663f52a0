"""`lowtide bench echo`: the models of the Echo paper with less memory, and what larger batches make of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lowtide.cli.answer import Answer
from lowtide.errors import OptionError

__all__ = ["bench_echo", "echo_options"]


def echo_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--batch", metavar="B", type=int, help="default: the paper's, 16 to 128")


def bench_echo(options: argparse.Namespace) -> Answer:
    scale = _scale(options.scale)
    if options.rounds < 1 or (options.batch is not None and options.batch < 1):
        raise OptionError("--rounds and --batch are numbers above 0")
    folder = options.output or Path("echo")
    if (folder / "echo.json").exists() and not options.force:
        raise OptionError(f"{folder / 'echo.json'} exists: -f overwrites it, -o OUT writes elsewhere")  # fmt: skip

    from lowtide.bench.echo import compare_echo
    from lowtide.bench.echo_models import names_of

    def tell(line: str) -> None:
        if not options.json:
            print(line, file=sys.stderr, flush=True)

    names = names_of([m for m in (options.models or "").split(",") if m])
    report = compare_echo(
        names, folder, scale=scale, batch=options.batch, rounds=options.rounds, seconds=options.seconds or 30.0, tell=tell,
    )  # fmt: skip
    return Answer(
        report.text(), report.data(), markdown=True, wrote=report.save(folder), next="lowtide bench lstm",
    )  # fmt: skip


def _scale(text: str | None) -> float:
    try:
        scale = float(text or 1)
    except ValueError:
        scale = 0.0
    if not 0 < scale <= 16:
        raise OptionError(f"--scale {text} is not a multiple of the paper's sizes, such as 0.5")
    return scale
