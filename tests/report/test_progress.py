"""Bars on a terminal, nothing anywhere else."""

from __future__ import annotations

import io

import pytest

from lowtide.report.progress import display, say
from lowtide.solve.planner import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_where_nobody_sees_it() -> None:
    stream = io.StringIO()
    with display(stream) as shown:
        assert shown is None
    assert stream.getvalue() == ""


def test_lines_are_said_to_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, wanted in ((Terminal(), "batch 8: fits\n"), (io.StringIO(), "")):
        monkeypatch.setattr("sys.stderr", stream)
        say("batch 8: fits")
        assert stream.getvalue() == wanted


def test_three_phases() -> None:
    stream = Terminal()
    with display(stream) as shown:
        assert shown is not None
        shown.capturing()
        shown.measuring(118, 118, 7)
        shown.solving(Progress(float("inf"), 0.1, 0.5, 3.0))
        shown.drawn = 0.0
        shown.solving(Progress(0.2, 0.1, 1.0, 3.0))
    text = stream.getvalue()
    assert "capturing" in text
    assert "118 of 118 distinct ops (7 cached)" in text
    assert "best 200.0 ms, bound 100.0 ms" in text
    assert "Ctrl-C keeps the best" in text
