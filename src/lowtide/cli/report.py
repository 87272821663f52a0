"""`lowtide report`: a saved file as a page, as text and as JSON."""

from __future__ import annotations

import argparse
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.answer import Answer, working
from lowtide.cli.output import free_output
from lowtide.cli.plan import plan_facts, positive
from lowtide.errors import OptionError

if TYPE_CHECKING:
    from lowtide.ir.graph import Graph
    from lowtide.plan.plan import Plan
    from lowtide.plan.profile import Profile
    from lowtide.report.curve import Curve

__all__ = ["ReportCommand"]


class ReportCommand:
    """Show a saved file as a page.

    FILE is a *.plan.json, *.profile.json or *.graph.json. The page is one HTML file that needs no network: memory over the step, who
    holds the peak, what was done to each layer and why. The terminal gets the same in short. Neither torch nor the device is needed.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "file", metavar="FILE", type=Path, help="a *.plan.json, *.profile.json or *.graph.json"
        )
        parser.add_argument(
            "-o",
            "--output",
            metavar="PAGE",
            type=Path,
            help="where to write the page (default: beside FILE; with --json: nowhere)",
        )
        parser.add_argument(
            "-f",
            "--force",
            action="store_true",
            help="overwrite PAGE though it is no report, and a trace",
        )
        parser.add_argument(
            "--frontier", action="store_true", help="also what other budgets would cost in time"
        )
        parser.add_argument(
            "--seconds",
            metavar="S",
            type=positive,
            default=10.0,
            help="how long to search for the frontier (default: %(default)g)",
        )
        parser.add_argument(
            "--measured",
            metavar="PROFILE",
            type=Path,
            help="a *.profile.json of the planned step, drawn over the predicted one",
        )
        parser.add_argument(
            "--trace",
            metavar="FILE",
            type=Path,
            help="also write every op and every byte as a trace, for ui.perfetto.dev",
        )

    def run(self, options: argparse.Namespace) -> Answer:
        output = _output(options)
        traced = free_output(options.trace, force=options.force) if options.trace else None

        from lowtide import api
        from lowtide.report.data import as_data
        from lowtide.report.page import page
        from lowtide.report.picture import picture_of
        from lowtide.report.terminal import lines_of, plain
        from lowtide.report.trace import trace

        source = api.load(options.file)
        picture = picture_of(
            source,
            _title(options.file),
            curve=_curve(source, options) if options.frontier else None,
            measured=_profile(options.measured) if options.measured else None,
            file=_facts(options.file),
        )
        if output is not None:
            output.write_text(page(picture), encoding="utf-8")
        if traced is not None:
            traced.write_text(trace([s.step for s in picture.steps]), encoding="utf-8")
        lines = lines_of(picture, _said(source))
        return Answer(
            plain(lines),
            {**as_data(picture), **_numbers(source)},
            styled=lines,
            wrote=output,
            next=_next(source, options),
        )


def _numbers(source: Graph | Plan | Profile) -> dict[str, object]:
    from lowtide.cli.profile_facts import profile_facts
    from lowtide.ir.graph import Graph
    from lowtide.plan.plan import Plan

    if isinstance(source, Graph):
        return {"ops": len(source.ops), "values": len(source.values)}
    return plan_facts(source) if isinstance(source, Plan) else profile_facts(source)


def _output(options: argparse.Namespace) -> Path | None:
    """Where the page goes. An older report is replaced; anything else is not, unless told so."""
    if options.output is None and options.json:
        return None
    output: Path = options.output or options.file.with_name(f"{_title(options.file)}.html")
    if output.exists() and not options.force and not _is_report(output):
        raise OptionError(f"{output} exists and is no report: -f overwrites it, -o PAGE writes elsewhere")  # fmt: skip
    if not output.parent.is_dir():
        raise OptionError(f"there is no folder {output.parent} to write {output.name} into")
    return output


def _is_report(path: Path) -> bool:
    from lowtide.report.page import MARK

    with path.open("rb") as file:
        return MARK.encode() in file.read(200)


def _title(file: Path) -> str:
    return file.name.removesuffix(".json")


def _said(source: Graph | Plan | Profile) -> str:
    from lowtide.ir.graph import Graph

    if not isinstance(source, Graph):
        return str(source)
    return f"not planned: {len(source.ops)} ops, {len(source.values)} tensors"


def _curve(source: Graph | Plan | Profile, options: argparse.Namespace) -> Curve:
    from lowtide import api
    from lowtide.plan.profile import Profile
    from lowtide.report.compare import curve_of

    planned = source.graph if isinstance(source, Profile) else source
    if planned is None:
        raise OptionError(f"{options.file} holds no graph, so no budget can be planned: make it without --frontier")  # fmt: skip
    with working(f"planning other budgets of {options.file.name}", quiet=options.json):
        return curve_of(api.frontier(planned, seconds=options.seconds), planned)


def _profile(file: Path) -> Profile:
    from lowtide import api
    from lowtide.plan.profile import Profile

    measured = api.load(file)
    if not isinstance(measured, Profile):
        raise OptionError(f"--measured {file} is no profile: `lowtide profile` writes one")
    return measured


def _facts(file: Path) -> dict[str, str]:
    from lowtide import __version__

    content = file.read_bytes()
    return {
        "name": file.name,
        "sha256": sha256(content).hexdigest(),
        "shown by": f"lowtide {__version__}",
    }


def _next(source: Graph | Plan | Profile, options: argparse.Namespace) -> str:
    from lowtide.plan.plan import Plan
    from lowtide.plan.profile import Profile

    if isinstance(source, Plan):
        return "" if options.frontier else f"lowtide report {options.file} --frontier"
    if isinstance(source, Profile) and source.graph is None:
        return ""
    return f"lowtide plan {options.file} --budget 60%"
