"""`lowtide cache`: what was measured before, and where it is."""

from __future__ import annotations

import argparse

from lowtide.cli.answer import Answer
from lowtide.settings import settings

__all__ = ["CacheCommand"]


class CacheCommand:
    """List or clear the stored measurements.

    list: where the store is, and how many measurements it has for each environment (device, torch version, threads).
    clear: remove them all, and the smallest programs found where a budget was refused. They are made again when they are needed.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("list", "clear"))

    def run(self, options: argparse.Namespace) -> Answer:
        return _clear() if options.action == "clear" else _list()


def _list() -> Answer:
    from lowtide.cost.store import environments

    folder = settings().cost_dir
    found = environments(folder)
    rows = [f"{count:7d}  {name}" for name, count in found.items()]
    text = "\n".join([f"measurements in {folder}", *(rows or ["   none"])])
    return Answer(
        text,
        {"folder": str(folder), "environments": found},
        next="lowtide cache clear" if found else "",
    )


def _clear() -> Answer:
    from lowtide.cost.store import clear, environments
    from lowtide.plan.floors import Floors

    folder = settings().cost_dir
    measurements = sum(environments(folder).values())
    files = clear(folder)
    programs = Floors(settings().floor_dir).clear()
    kept = f" and {programs} smallest programs" if programs else ""
    text = f"removed {measurements} measurements in {files} files{kept} from {folder.parent}"
    return Answer(text, {"folder": str(folder), "measurements": measurements, "files": files, "programs": programs})  # fmt: skip
