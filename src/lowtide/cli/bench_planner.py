"""`lowtide bench planner`: every solver on captured training steps, side by side; with --scale, ever larger graphs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.cli.answer import Answer
from lowtide.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from lowtide.bench.planner_run import Results
    from lowtide.bench.planner_scale import ScaleRow

__all__ = ["bench_planner", "planner_options"]

Say = Callable[[str], None]


def planner_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--budgets", metavar="P,Q", default="80,70,60,50,40,30,20", help="percent of the unplanned peak (%(default)s)")  # fmt: skip
    group.add_argument("--solvers", metavar="A,B", help="default: auto and all baselines")
    group.add_argument("--device", default="A100", help="whose data sheet prices ops (%(default)s)")
    group.add_argument("--graphs", metavar="DIR", type=Path, help="where captured graphs are kept (the cache folder)")  # fmt: skip
    group.add_argument("--scale", metavar="N,M", nargs="?", const="1000,2000,5000,10000,20000,50000", help="plan graphs of so many ops instead (%(const)s)")  # fmt: skip


def bench_planner(options: argparse.Namespace) -> Answer:
    return _scale(options) if options.scale else _planner(options)


def _planner(options: argparse.Namespace) -> Answer:
    from lowtide.bench.planner_graphs import MODELS, sheet
    from lowtide.bench.planner_run import COMPARED, Results, facts, tables
    from lowtide.solve.planner import SOLVERS

    models = _chosen(options.models, MODELS, "model") or list(MODELS)
    solvers = _chosen(options.solvers, SOLVERS, "solver") or list(COMPARED)
    budgets = _numbers(options.budgets, "--budgets")
    seconds, device = options.seconds or 10.0, sheet(options.device).name
    folder: Path = options.output or Path("planner-bench")
    if (folder / "planner.jsonl").exists() and not options.force:
        raise OptionError(f"{folder} has results: -f overwrites them, -o OUT writes elsewhere")
    results = Results(folder, {"device": device, "seconds": seconds})
    todo = len(models) * len(budgets) * len(solvers)
    with _progress(quiet=options.json) as say:
        stopped = _fill(results, models, budgets, solvers, options.graphs, say, todo)
    results.write()
    text = tables(results.rows)
    if stopped:
        text += f"\n\nStopped: {len(results.rows)} of {todo} rows."
    return Answer(
        text,
        {**results.settings, "stopped": stopped, **facts(results.rows)},
        markdown=True,
        wrote=folder,
        next=f"lowtide bench planner --scale -o {folder}",
    )


def _fill(
    results: Results,
    models: list[str],
    budgets: list[float],
    solvers: list[str],
    graphs: Path | None,
    say: Say,
    todo: int,
) -> bool:
    """Rows as they come; True if Ctrl-C ended it."""
    from lowtide.bench.planner_graphs import captured, ready, sheet
    from lowtide.bench.planner_run import compare

    device, seconds = (
        sheet(str(results.settings["device"])),
        float(str(results.settings["seconds"])),
    )
    try:
        for model in models:
            say(f"{model}: its graph, captured if it is new")
            graph = ready(captured(model, graphs), device)
            for row in compare(model, graph, budgets=budgets, solvers=solvers, seconds=seconds):
                results.add(row)
                say(
                    f"{len(results.rows)} of {todo} rows: {row.model} {row.percent:g}% {row.solver}"
                )
            results.write()
    except KeyboardInterrupt:
        return True
    return False


def _scale(options: argparse.Namespace) -> Answer:
    from dataclasses import asdict

    from lowtide.bench.planner_graphs import sheet
    from lowtide.bench.planner_scale import scale, scale_table

    sizes = [int(size) for size in _numbers(options.scale, "--scale")]
    folder: Path = options.output or Path("planner-bench")
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "scale.jsonl"
    if lines.exists() and not options.force:
        raise OptionError(f"{folder} has results: -f overwrites them, -o OUT writes elsewhere")
    lines.write_text("")
    rows: list[ScaleRow] = []
    found = scale(sizes, seconds=options.seconds or 60.0, device=sheet(options.device).name, folder=options.graphs)  # fmt: skip
    stopped = False
    with _progress(quiet=options.json) as say:
        try:
            say(f"planning {sizes[0]} ops")
            for row in found:
                rows.append(row)
                with lines.open("a") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
                say(f"{len(rows)} of {len(sizes)} rows: {row.ops} ops")
        except KeyboardInterrupt:
            stopped = True
    text = scale_table(rows)
    (folder / "scale.md").write_text(text + "\n")
    return Answer(
        text + (f"\n\nStopped: {len(rows)} of {len(sizes)} rows." if stopped else ""),
        {"stopped": stopped, "rows": [asdict(row) for row in rows]},
        markdown=True,
        wrote=folder / "scale.md",
        next=f"lowtide bench planner -o {folder}",
    )


def _chosen(text: str | None, known: tuple[str, ...], what: str) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise OptionError(
                f"no {what} called {word!r}{did_you_mean(word, list(known))} Known: {', '.join(known)}"
            )
    return words


def _numbers(text: str, flag: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise OptionError(f"{flag} {text!r}: give numbers above 0, as in 80,60,40")
    return found


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Say]:
    """Says how far it is: in one changing line on a terminal, line by line in a log."""
    if quiet:
        yield lambda words: None
    elif not sys.stderr.isatty():
        yield lambda words: print(words, file=sys.stderr, flush=True)
    else:
        from rich.console import Console

        with Console(stderr=True).status("starting") as status:
            yield lambda words: status.update(f"{words}   Ctrl-C keeps what is done")
