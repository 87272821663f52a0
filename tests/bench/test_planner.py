"""Planners are compared row by row, nothing is lost on the way, and a repeated block is as good as a captured one."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowtide.bench import planner_graphs, planner_run
from lowtide.bench.apart import apart
from lowtide.bench.planner_run import Results, Row, compare, frontiers, tables
from lowtide.bench.planner_scale import ScaleRow, exponent, measure, scale_table
from lowtide.bench.replicate import find_blocks, replicate
from lowtide.cli import main
from lowtide.errors import GraphError, LowtideError
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate
from tests.solve.builders import ADD, MM, TANH, Step, chain, lstm

SVG = "{http://www.w3.org/2000/svg}"


def blocks(count: int, shared: bool = True) -> Graph:
    """A residual network of equal blocks, each with a weight of its own and one that all share."""
    step = Step()
    x = step.batch("x", 1000)
    everywhere = step.parameter("shared", 30)
    x = step.op("stem", MM, [x, everywhere], 1000, 3, saves=[x, everywhere])
    for i in range(count):
        w = step.parameter(f"w{i}", 70)
        y = step.op(f"mm{i}", MM, [x, w], 4000, 5, saves=[x, w], workspace=100)
        y = step.op(f"tanh{i}", TANH, [step.view(f"view{i}", y)], 4000, 1, saves=[f"tanh{i}"])
        y = step.op(f"down{i}", "aten.mv.default", [y, everywhere], 1000, 4, saves=[y, everywhere])
        x = step.op(f"add{i}", ADD, [x, y], 1000, 1, saves=[])
    return step.graph(step.op("head", "aten.sum.default", [x], 8, 1, saves=[]))


def row(**changed: object) -> Row:
    facts: dict[str, object] = {
        "model": "net", "ops": 9, "unplanned_peak": 1000, "unplanned_seconds": 2.0, "percent": 60, "budget": 600,
        "solver": "auto", "planning_seconds": 0.5, "seconds": 2.2, "peak": 590, "overhead": 0.1, "gap": 0.02,
        "bound": 2.1, "floor": 300, "status": "feasible",
    }  # fmt: skip
    return Row(**{**facts, **changed})  # type: ignore[arg-type]


# Rows.


def test_every_solver_gets_a_row_and_auto_is_no_worse_than_any():
    graph = chain(24)
    rows = list(compare("chain", graph, budgets=(70, 40), solvers=("auto", "chen", "keep all"), seconds=0.5))  # fmt: skip
    assert [(r.percent, r.solver) for r in rows] == [
        (p, s) for p in (70, 40) for s in ("auto", "chen", "keep all")
    ]
    whole = simulate(graph, unplanned(graph))
    for one in rows:
        assert one.ops == len(whole.moments)
        assert one.budget == int(whole.peak * one.percent / 100)
    for percent in (70, 40):
        fitting = {r.solver: r.seconds for r in rows if r.percent == percent and r.fits}
        assert fitting["auto"] == min(fitting.values())
    everything = [r for r in rows if r.solver == "keep all"]
    assert all(not r.fits and "over the budget" in r.why for r in everything)


def test_a_solver_without_an_answer_gets_a_dash_and_the_reason(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise GraphError("too large for me")

    monkeypatch.setattr(planner_run, "solve", refuse)
    (found,) = compare("chain", chain(5), budgets=(60,), solvers=("auto",), seconds=0.1)
    assert not found.fits
    assert found.why == "too large for me"
    assert "| 60% |  | - |" in tables([found])


def test_tables_say_what_the_rows_say():
    rows = [row(), row(solver="chen", overhead=0.3, seconds=2.6), row(solver="echo", peak=700)]
    text = tables(rows)
    assert "floor 300 B (30%)" in text
    assert "| 60% | +5.0% | +10.0%, gap 2.0%, 0.5 s | +30.0%, 0.5 s | - |" in text
    assert "| auto | 1 of 1 | 1 |" in text
    assert "| chen | 1 of 1 | 0 |" in text
    assert "| echo | 0 of 1 | 0 |" in text


def test_the_picture_has_a_panel_for_each_model_and_a_line_for_each_solver():
    rows = [
        row(model=model, solver=solver, percent=percent, peak=10 * percent, budget=10 * percent)
        for model in ("a<b", "c")
        for solver in ("auto", "chen")
        for percent in (80, 40)
    ]
    root = ElementTree.fromstring(frontiers([*rows, row(solver="echo", peak=900)]))
    assert {"a<b", "c"} <= {t.text for t in root.iter(f"{SVG}text")}
    lines = [p for p in root.iter(f"{SVG}path") if p.find(f"{SVG}title") is not None]
    assert [p[0].text for p in lines] == ["auto", "chen"] * 2
    assert all(p.attrib["d"].count("L") == 1 for p in lines)


def test_rows_are_on_disk_as_soon_as_they_are_made(tmp_path: Path):
    results = Results(tmp_path / "new", {"device": "A100"})
    results.add(row())
    results.add(row(percent=40))
    lines = (tmp_path / "new" / "planner.jsonl").read_text().splitlines()
    assert [json.loads(line)["percent"] for line in lines] == [60, 40]
    results.write()
    assert "### net" in (tmp_path / "new" / "planner.md").read_text()
    assert len(json.loads((tmp_path / "new" / "planner.json").read_text())["rows"]) == 2


# Processes.


def test_what_runs_apart_returns_raises_and_may_die():
    def fail() -> None:
        raise GraphError("no")

    assert apart(lambda: {"a": [1]}, 5) == {"a": [1]}
    with pytest.raises(LowtideError, match=r"F000 no$"):
        apart(fail, 5)
    with pytest.raises(LowtideError, match="ZeroDivisionError"):
        apart(lambda: 1 / 0, 5)
    with pytest.raises(LowtideError, match="died with code 3"):
        apart(lambda: os._exit(3), 5)


def test_what_runs_apart_is_stopped_in_time():
    started = time.perf_counter()
    with pytest.raises(LowtideError, match="longer than"):
        apart(lambda: time.sleep(30), 0.2)
    assert time.perf_counter() - started < 5


# Repeated blocks.


def facts(graph: Graph) -> object:
    timeline = simulate(graph, unplanned(graph))
    targets = Counter((o.target, o.segment, len(o.inputs)) for o in graph.ops)
    users = Counter(len(ops) for ops in graph.users.values())
    return timeline.peak, round(timeline.seconds, 6), targets, users, len(graph.required)


@pytest.mark.parametrize(("captured", "more"), [(6, 1), (6, 5), (9, 20)])
def test_repeating_a_block_gives_the_deeper_network(captured: int, more: int):
    found = find_blocks(blocks(captured))
    deeper = replicate(found, more)
    check_graph(deeper)
    assert facts(deeper) == facts(blocks(captured + more))
    runs = sum(not deeper.is_view(o) for o in deeper.ops)
    assert runs - sum(not found.graph.is_view(o) for o in found.graph.ops) == more * found.size


def test_no_copies_is_the_graph_itself():
    graph = blocks(6)
    assert replicate(find_blocks(graph), 0) == graph


def test_what_does_not_repeat_is_refused():
    with pytest.raises(GraphError, match="blocks repeat"):
        find_blocks(blocks(2))
    with pytest.raises(GraphError, match="does not repeat"):
        replicate(find_blocks(lstm(8)), 2)  # every time step's output is read by one op at the end


def test_scale_measures_a_plan(monkeypatch: pytest.MonkeyPatch):
    found = measure(blocks(6), 10, 0.5, "A100")
    assert found.ops == len(simulate(blocks(16), unplanned(blocks(16))).moments)
    assert found.status != "infeasible"
    assert found.first_seconds is not None
    assert found.first_seconds <= found.planning_seconds
    assert found.memory >= found.graph_memory > 0


def test_growth_is_told_by_its_exponent():
    sizes = [1000, 5000, 50_000]
    assert exponent(sizes, [n**2 * 1e-6 for n in sizes]) == pytest.approx(2)
    assert exponent([1000], [1.0]) is None
    rows = [
        ScaleRow(
            n, 1, n * math.log(n) * 1e-5, 60.0, 61.0, 30.0, 0.1, 0.01, 2**30, 2**28, "feasible"
        )
        for n in sizes
    ]
    assert "at least n^1.11 seconds; n log n is n^1.11" in scale_table(rows)


# The verb.


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(planner_graphs, "captured", lambda name, folder=None: chain(16))
    return [
        "bench", "planner", "--models", "gpt,unet", "--budgets", "60", "--solvers", "auto,chen",
        "--seconds", "0.3", "-o", str(tmp_path / "out"),
    ]  # fmt: skip


def test_the_verb_writes_tables_and_a_picture(command: list[str], tmp_path: Path, capsys):
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "### gpt" in shown.out
    assert "### unet" in shown.out
    assert f"next: lowtide bench planner --scale -o {tmp_path / 'out'}" in shown.out
    assert "4 of 4 rows" in shown.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"planner.jsonl", "planner.json", "planner.md", "frontiers.svg"}
    assert main(command) == 2  # there are results now
    assert "-f overwrites" in capsys.readouterr().err
    assert main([*command, "-f", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4


def test_ctrl_c_prints_what_is_done(command: list[str], tmp_path: Path, monkeypatch, capsys):
    def interrupted(name: str, *_: object, **__: object):
        yield row(model=name)
        raise KeyboardInterrupt

    monkeypatch.setattr(planner_run, "compare", interrupted)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "### gpt" in shown
    assert "Stopped: 1 of 4 rows" in shown
    assert (tmp_path / "out" / "frontiers.svg").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--models", "gtp"], "did you mean 'gpt'"),
        (["--solvers", "gurobi"], "no solver called 'gurobi'"),
        (["--budgets", "60,x"], "numbers above 0"),
        (["--device", "A1000"], "did you mean 'A100'"),
        (["--seconds", "0"], "above 0"),
    ],
)
def test_wrong_options_are_named(flags: list[str], words: str, command: list[str], capsys):
    assert main([*command, *flags]) == 2
    assert words in capsys.readouterr().err


def test_monet_still_needs_its_data(capsys):
    assert main(["bench", "monet"]) == 2
    assert "--data" in capsys.readouterr().err
