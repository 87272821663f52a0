"""The stored measurements can be listed and cleared, and only they."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lowtide.cli import main
from lowtide.cost.store import Cost, CostStore
from lowtide.ir.program import unplanned
from lowtide.plan.floors import Floors
from tests.solve.builders import chain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "costs"


def fill(folder: Path) -> None:
    for environment, count in (("cpu one | torch 2.13.0", 3), ("cpu two | torch 2.13.0", 1)):
        store = CostStore(folder, environment)
        for index in range(count):
            store.put(f"op {index}", Cost(1.0, 0))


def test_an_empty_store_is_listed_too(folder: Path, capsys):
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out == f"measurements in {folder}\n   none\n"
    assert not folder.exists()


def test_list_counts_by_environment(folder: Path, capsys):
    fill(folder)
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"measurements in {folder}",
        "      3  cpu one | torch 2.13.0",
        "      1  cpu two | torch 2.13.0",
        "next: lowtide cache clear",
    ]
    assert main(["cache", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(folder),
        "environments": {"cpu one | torch 2.13.0": 3, "cpu two | torch 2.13.0": 1},
    }


def test_clear_removes_the_measurements_and_nothing_else(folder: Path, capsys):
    fill(folder)
    other = folder / "notes.txt"
    other.write_text("mine")
    assert main(["cache", "clear"]) == 0
    assert "removed 4 measurements" in capsys.readouterr().out
    assert list(folder.iterdir()) == [other]


def test_clear_removes_the_smallest_programs_too(folder: Path, capsys):
    graph = chain(5)
    floors = Floors(folder.parent / "floors")
    floors.put(graph, unplanned(graph))
    assert main(["cache", "clear"]) == 0
    assert "and 1 smallest programs" in capsys.readouterr().out
    assert floors.get(graph) is None
