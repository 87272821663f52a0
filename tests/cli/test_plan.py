"""`lowtide plan`: files in, files and text out, no torch, no surprise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import api
from lowtide.cli import main
from lowtide.plan.format import save_graph
from lowtide.plan.plan import Plan
from tests.solve.builders import chain

QUICK = ["--seconds", "0.5"]


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    return save_graph(chain(12), tmp_path / "step.graph.json")


def plan(graph_file: Path, *more: str, budget: str = "70%") -> int:
    return main(["plan", str(graph_file), "--budget", budget, *QUICK, *more])


def test_a_plan_is_printed_written_and_followed_by_the_next_command(graph_file: Path, capsys):
    assert plan(graph_file) == 0
    output = graph_file.with_name("step.plan.json")
    shown = capsys.readouterr().out
    made = api.load(output)
    assert isinstance(made, Plan)
    assert made.peak <= made.budget
    assert shown == f"{made}\nwrote {output}     next: lowtide report {output}\n"


def test_as_json(graph_file: Path, capsys):
    assert plan(graph_file, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["peak"] <= facts["budget"]
    assert facts["exact"] is True
    assert facts["wrote"] == str(graph_file.with_name("step.plan.json"))


def test_it_does_not_overwrite_unasked(graph_file: Path, capsys):
    output = graph_file.with_name("step.plan.json")
    output.write_text("mine")
    assert plan(graph_file) == 2
    assert "-f overwrites it" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert plan(graph_file, "-f") == 0
    assert isinstance(api.load(output), Plan)


def test_the_output_can_be_named(graph_file: Path, tmp_path: Path):
    assert plan(graph_file, "-o", str(tmp_path / "other.plan.json")) == 0
    assert (tmp_path / "other.plan.json").exists()
    assert not (tmp_path / "step.plan.json").exists()


def test_a_missing_folder_is_refused_before_the_search(graph_file: Path, tmp_path: Path, capsys):
    assert plan(graph_file, "-o", str(tmp_path / "nowhere" / "p.plan.json")) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_plan_can_be_planned_anew(graph_file: Path, tmp_path: Path):
    assert plan(graph_file) == 0
    first = tmp_path / "step.plan.json"
    assert plan(first, budget="90%") == 2
    second = tmp_path / "wide.plan.json"
    assert plan(first, "-o", str(second), budget="90%") == 0
    assert api.load(second).budget > api.load(first).budget


def test_a_budget_below_the_floor_exits_with_three(graph_file: Path, capsys):
    assert plan(graph_file, "--json", budget="1%") == 3
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert error["code"] == "F012"
    assert error["floor"] > 0
    assert shown.err.count("lowtide explain F012") == 1
    assert not graph_file.with_name("step.plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--budget", "lots"], "F011"),
        (["--budget", "device"], "F050"),
        (["--budget", "70%", "--solver", "serch"], "F050"),
    ],
)
def test_wrong_options_exit_with_two(graph_file: Path, arguments: list[str], code: str, capsys):
    assert main(["plan", str(graph_file), *QUICK, *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"{code} ")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_the_time_limit_is_above_zero(graph_file: Path, seconds: str, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(graph_file), "--budget", "70%", "--seconds", seconds])
    assert stopped.value.code == 2
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"lowtide": "graph"}'])
def test_files_that_are_not_ours(tmp_path: Path, content: str | None, capsys):
    file = tmp_path / "x.graph.json"
    if content is not None:
        file.write_text(content)
    for arguments in (["plan", str(file), "--budget", "70%"], ["report", str(file)]):
        assert main(arguments) == 1
        assert capsys.readouterr().err.startswith("F041 ")


def test_planning_needs_no_torch(graph_file: Path):
    code = (
        "import sys; from lowtide.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "print(status, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "plan", str(graph_file), "--budget", "70%", *QUICK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
