"""`lowtide bench peers`: real steps with torch's own ways to save memory, and with Lowtide at the peaks they reach."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lowtide.cli.answer import Answer
from lowtide.errors import OptionError

__all__ = ["bench_peers", "peers_options"]


def peers_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rounds", metavar="N", type=int, default=7, help="of timing (default: %(default)s)"
    )


def bench_peers(options: argparse.Namespace) -> Answer:
    if options.rounds < 1:
        raise OptionError("--rounds is a number above 0")
    folder = options.output or Path("peers")
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file: -o takes a folder")
    if (folder / "peers.json").exists() and not options.force:
        raise OptionError(
            f"{folder / 'peers.json'} exists: -f overwrites it, -o OUT writes elsewhere"
        )

    from lowtide.bench.models import names_of
    from lowtide.bench.peers_run import compare

    def tell(line: str) -> None:
        if not options.json:
            print(line, file=sys.stderr, flush=True)

    report = compare(
        names_of([m for m in (options.models or "").split(",") if m]),
        folder,
        rounds=options.rounds,
        seconds=options.seconds or 30.0,
        tell=tell,
    )
    return Answer(
        report.text(), report.data(), markdown=True, wrote=report.page, next=report.next()
    )
