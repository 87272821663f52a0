"""What a refusal named is reached by whoever asks for it, however short the search."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowtide
from lowtide.errors import BudgetError
from lowtide.ir.program import unplanned
from lowtide.plan.floors import Floors
from lowtide.sim.memory import simulate
from lowtide.solve.planner import solve
from tests.solve.builders import chain


def smallest(graph: lowtide.Graph):
    return solve(graph, 1, seconds=1.0).program


def test_the_smaller_program_is_kept(tmp_path: Path):
    graph, floors = chain(12), Floors(tmp_path / "new")
    assert floors.get(graph) is None
    floors.put(graph, unplanned(graph))
    floors.put(graph, smallest(graph))
    assert floors.put(graph, unplanned(graph)) == smallest(graph)
    assert floors.get(graph) == smallest(graph)
    assert floors.get(chain(11)) is None


def test_a_damaged_file_is_as_none(tmp_path: Path):
    graph, floors = chain(12), Floors(tmp_path)
    floors.put(graph, smallest(graph))
    floors.path(graph).write_text("{")
    assert floors.get(graph) is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").touch()
    Floors(tmp_path / "file").put(chain(12), unplanned(chain(12)))
    assert "cannot keep the smallest program" in caplog.text


def test_a_search_without_time_returns_what_is_known():
    graph = chain(12)
    known = smallest(graph)
    peak = simulate(graph, known).peak
    result = solve(graph, peak, seconds=0.0, solver="search", known=known)
    assert result.peak <= peak


def test_the_budget_a_refusal_suggests_is_met_without_time():
    graph = chain(12)
    with pytest.raises(BudgetError) as caught:
        lowtide.plan(graph, 1, seconds=1.0)
    assert lowtide.plan(graph, caught.value.floor, seconds=0.0).peak <= caught.value.floor
