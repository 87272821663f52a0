"""`lowtide report`: a saved file as a page, text and JSON, without torch, without surprises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.cli import main
from lowtide.plan.format import save_graph
from lowtide.report.page import MARK
from tests.report.pictures import a_graph, a_plan, a_profile


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    return a_plan().save(tmp_path / "net.plan.json")


def test_a_plan_is_printed_and_drawn_beside_its_file(plan_file: Path, capsys):
    assert main(["report", str(plan_file)]) == 0
    shown = capsys.readouterr().out
    page = plan_file.with_name("net.plan.html")
    assert shown.startswith(f"{a_plan()}\n")
    assert "who holds the peak" in shown
    assert shown.endswith(f"wrote {page}     next: lowtide report {plan_file} --frontier\n")
    assert MARK in page.read_text()


def test_a_report_is_replaced_but_nothing_else(plan_file: Path, capsys):
    page = plan_file.with_name("net.plan.html")
    assert main(["report", str(plan_file)]) == 0
    assert main(["report", str(plan_file)]) == 0
    page.write_text("mine")
    assert main(["report", str(plan_file)]) == 2
    assert "-f overwrites it" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert main(["report", str(plan_file), "-f"]) == 0
    assert MARK in page.read_text()


def test_the_page_can_be_named(plan_file: Path, tmp_path: Path, capsys):
    assert main(["report", str(plan_file), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").exists()
    assert not plan_file.with_name("net.plan.html").exists()
    assert main(["report", str(plan_file), "-o", str(tmp_path / "nowhere" / "x.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_json_is_all_data_and_writes_nothing_unasked(plan_file: Path, tmp_path: Path, capsys):
    assert main(["report", str(plan_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "plan"
    assert found["peak"] == a_plan().peak
    assert [step["name"] for step in found["steps"]] == ["planned", "unplanned"]
    assert "wrote" not in found
    assert main(["report", str(plan_file), "--json", "-o", str(tmp_path / "x.html")]) == 0
    assert json.loads(capsys.readouterr().out)["wrote"] == str(tmp_path / "x.html")


@pytest.mark.parametrize("name", ["net.graph.json", "net.profile.json"])
def test_graphs_and_profiles_too(tmp_path: Path, name: str, capsys):
    file = tmp_path / name
    if "graph" in name:
        save_graph(a_graph(), file)
    else:
        a_profile().save(file)
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out.endswith(f"next: lowtide plan {file} --budget 60%\n")
    assert MARK in file.with_suffix(".html").read_text()


def test_a_measured_step_is_drawn_over_the_predicted_one(plan_file: Path, tmp_path: Path, capsys):
    measured = a_profile().save(tmp_path / "net.profile.json")
    assert main(["report", str(plan_file), "--measured", str(measured)]) == 0
    assert 'class="observed"' in plan_file.with_name("net.plan.html").read_text()
    assert main(["report", str(plan_file), "--measured", str(plan_file)]) == 2
    assert "is no profile" in capsys.readouterr().err


def test_the_frontier_is_drawn_on_request(plan_file: Path, capsys):
    assert main(["report", str(plan_file), "--frontier", "--seconds", "0.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["frontier"]
    assert len(found["line"]) >= 2
    assert found["chosen"]["peak"] == a_plan().peak
    assert "no plan" in {spot["name"] for spot in found["baselines"]}
    peaks = [spot["peak"] for spot in found["line"]]
    assert peaks == sorted(peaks)


def test_a_profile_without_a_graph_has_no_frontier(tmp_path: Path, capsys):
    from dataclasses import replace

    file = replace(a_profile(), graph=None).save(tmp_path / "net.profile.json")
    assert main(["report", str(file), "--frontier"]) == 2
    assert "holds no graph" in capsys.readouterr().err


def test_neither_torch_nor_numbers_libraries_are_imported(plan_file: Path):
    code = (
        "import sys; from lowtide.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "print(status, *[m for m in ('torch', 'numpy', 'numba', 'scipy', 'rich') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, "report", str(plan_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0"
