"""`lowtide bench`: the tables that compare, made on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lowtide.cli.answer import Answer, working
from lowtide.cli.bench_echo import bench_echo, echo_options
from lowtide.cli.bench_lstm import bench_lstm, lstm_options
from lowtide.cli.bench_peers import bench_peers, peers_options
from lowtide.cli.bench_planner import bench_planner, planner_options
from lowtide.cli.bench_rules import bench_rules
from lowtide.errors import OptionError

__all__ = ["BenchCommand"]


class BenchCommand:
    """Compare with others.

    monet: plan the MONeT paper's own instances, in its own memory model, against its published schedules. --data is the folder
    with the instances. One instance is written to -o in the form of the published schedules; --all prints a table.

    planner: plan captured training steps at budgets of 80% to 20% of their peak, with every solver side by side. The steps are captured
    on fake tensors and priced from a data sheet, so no big memory is needed; --graphs is the folder that keeps them. Tables, rows and a
    picture are written to the folder -o. --scale plans ever larger graphs instead.

    peers: real steps of eight models, in eager mode, with torch.utils.checkpoint around each block, with torch.compile at five
    ratios of its own activation budget, and with Lowtide at each of the peaks that these reached. Measured in turn; results are
    compared. A page, its data and the plans go to the folder -o.

    rules: the same eight models at 60, 45 and 33% of their peak with no rules, with each rule alone, and with all: which of them earns its
    place where. A page and its data go to the folder -o.

    lstm: lowtide.nn.LSTM against torch's, over batches, widths, layers and lengths: time of a step, beside the matrix products that it
    cannot do without in both layouts and torch's layer unrolled by Inductor, and bytes kept for backward. A page and its data go to the folder -o.

    echo: the Echo paper's models (tbd, groundhog, lm_650, lm_200, deepspeech) in eager mode, with Chen's and Echo's recomputation and with
    Lowtide, at the paper's batch, at twice that and at the best within the eager step's peak: where the bytes lie, and samples per second.
    --scale 0.5 halves all widths. A page, its data and a picture go to the folder -o.

    Ctrl-C keeps what is done.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", choices=tuple(_BENCHES))
        parser.add_argument("--seconds", metavar="S", type=float, help="for each plan (monet, scale: 60; peers: 30; planner: 10; rules: 5)")  # fmt: skip
        parser.add_argument(
            "--models", metavar="A,B", help="planner, peers, rules, echo: default all"
        )
        parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="planner, peers, rules, lstm, echo: a folder")  # fmt: skip
        parser.add_argument("-f", "--force", action="store_true", help="overwrite what is in OUT")
        _monet_options(parser.add_argument_group("monet"))
        planner_options(parser.add_argument_group("planner"))
        peers_options(parser.add_argument_group("peers, rules, lstm, echo"))
        lstm_options(parser.add_argument_group("lstm"))
        echo_options(
            parser.add_argument_group("echo (and --scale X, a multiple of the paper's widths)")
        )

    def run(self, options: argparse.Namespace) -> Answer:
        if options.seconds is not None and not options.seconds > 0:
            raise OptionError("--seconds is a number above 0")
        return _BENCHES[options.name](options)


def _monet_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data", metavar="DIR", type=Path)
    group.add_argument("--model", default="resnet50")
    group.add_argument("--profile", default="inplace_conv_multiway_newnode")
    group.add_argument("--budget", metavar="GB", type=float, default=8.0)
    group.add_argument("--all", action="store_true", help="every published model and budget")


def _monet(options: argparse.Namespace) -> Answer:
    from lowtide.bench.monet_run import plan_all, plan_one, table

    if options.data is None:
        raise OptionError("bench monet needs --data DIR, the folder with the instances")
    if not options.budget > 0:
        raise OptionError("--budget is a number above 0")
    seconds = options.seconds or 60.0
    with working(f"planning for {seconds:g} s each", quiet=options.json):
        rows = (
            list(plan_all(options.data, options.profile, seconds))
            if options.all
            else [plan_one(options.data, options.model, options.profile, options.budget, seconds)]
        )
    if options.output:
        made = [row.schedule for row in rows]
        content = {"schedules": made} if options.all else made[0]
        options.output.write_text(json.dumps(content))
    names = (
        "model",
        "profile",
        "budget_gb",
        "ms",
        "peak_gb",
        "seconds",
        "published_ms",
        "bound_ms",
        "ratio",
    )
    facts = [{name: getattr(row, name) for name in names} for row in rows]
    return Answer(table(rows), {"rows": facts}, markdown=True, wrote=options.output)


_BENCHES = {
    "monet": _monet,
    "planner": bench_planner,
    "peers": bench_peers,
    "rules": bench_rules,
    "lstm": bench_lstm,
    "echo": bench_echo,
}
