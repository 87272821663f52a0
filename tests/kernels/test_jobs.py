"""Loops that threads run together: each learns its share, and they can wait for each other; if too few come, one does it all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowtide.kernels import jobs
from lowtide.kernels.jobs import enter, floats, job, to_fixed_tuple, wait

pytest.importorskip("numba")


@job
def note(place: Any) -> None:
    """Each thread writes its number into its share, and after all others have, copies the share of the next one."""
    index, count, barrier, told = enter(place)
    if not count:
        return
    rows, columns, source, target = to_fixed_tuple(told, 4)
    first, last = rows * index // count, rows * (index + 1) // count
    marks, copies = floats(source, rows, columns), floats(target, rows, columns)
    for row in range(first, last):
        for column in range(columns):
            marks[row, column] += index + 1
    wait(barrier)
    for row in range(first, last):
        for column in range(columns):
            copies[row, column] = marks[rows - 1 - row, column]


def noted(threads: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    marks, copies = torch.zeros(4, 3), torch.empty(4, 3)
    return note.run(threads, 4, 3, marks, copies), marks, copies


@pytest.mark.skipif(jobs.team() is None, reason="no threads to run together")
def test_each_thread_has_its_share_and_waits_for_the_others() -> None:
    for _ in range(50):
        ran, marks, copies = noted(2)
        assert ran == 2
        assert marks[:, 0].tolist() == [1, 1, 2, 2]
        assert torch.equal(copies, marks.flip(0))


def test_one_does_it_all() -> None:
    ran, marks, copies = noted(1)
    assert ran == 1
    assert bool((marks == 1).all())
    assert torch.equal(copies, marks)


def test_one_does_it_all_where_there_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "team", lambda: None)
    ran, marks, _ = noted(2)
    assert ran == 1
    assert bool((marks == 1).all())


def test_one_does_it_all_once_where_fewer_come_than_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    team = jobs.team()
    if team is None:
        pytest.skip("no threads to run together")
    start = team.start
    monkeypatch.setattr(
        team, "start", lambda address, place, _, flags: start(address, place, 1, flags)
    )
    ran, marks, copies = noted(2)
    assert ran == 1
    assert bool((marks == 1).all())
    assert torch.equal(copies, marks)
