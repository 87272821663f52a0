"""`lowtide bench rules`: real steps with no rules, each alone, and all of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lowtide.cli.answer import Answer
from lowtide.errors import OptionError

__all__ = ["bench_rules"]


def bench_rules(options: argparse.Namespace) -> Answer:
    folder = options.output or Path("rules")
    if (folder / "rules.json").exists() and not options.force:
        raise OptionError(
            f"{folder / 'rules.json'} exists: -f overwrites it, -o OUT writes elsewhere"
        )

    from lowtide.bench.ablation import ablate
    from lowtide.bench.models import names_of

    def tell(line: str) -> None:
        if not options.json:
            print(line, file=sys.stderr, flush=True)

    models = names_of([m for m in (options.models or "").split(",") if m])
    found = ablate(models, folder, rounds=options.rounds, seconds=options.seconds or 5.0, tell=tell)
    page = found.save(folder)
    left = [m for m in models if m not in found.entries]
    again = f"lowtide bench rules --models {','.join(left)} -o {folder}-rest"
    return Answer(
        found.text(), found.data(), markdown=True, wrote=page,
        next=again if left else "lowtide bench peers",
    )  # fmt: skip
