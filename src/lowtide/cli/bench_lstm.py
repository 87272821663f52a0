"""`lowtide bench lstm`: `lowtide.nn.LSTM` against torch's, over batches, widths, layers and lengths."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lowtide.cli.answer import Answer
from lowtide.errors import OptionError

__all__ = ["bench_lstm", "lstm_options"]


def lstm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--unrolled", metavar="STEPS", type=int, default=0,
        help="also torch's layer as Inductor compiles it, where it has at most so many steps in all layers (two seconds each)",
    )  # fmt: skip


def bench_lstm(options: argparse.Namespace) -> Answer:
    folder = options.output or Path("lstm")
    if (folder / "lstm.json").exists() and not options.force:
        raise OptionError(
            f"{folder / 'lstm.json'} exists: -f overwrites it, -o OUT writes elsewhere"
        )

    from lowtide.bench.layers import race_layers

    def tell(line: str) -> None:
        if not options.json:
            print(line, file=sys.stderr, flush=True)

    found = race_layers(rounds=options.rounds, unrolled=options.unrolled, tell=tell)
    page = found.save(folder)
    return Answer(
        found.text(), found.data(), markdown=True, wrote=page, next="lowtide bench rules --models word_lm,nmt",
    )  # fmt: skip
