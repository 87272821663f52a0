"""A profile adds up at every moment, says so in words, and comes back from its file as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import lowtide
from lowtide.errors import CaptureError, FileFormatError
from lowtide.ir.graph import Kind
from lowtide.plan.folding import fold_layers
from lowtide.plan.format import write_content
from lowtide.plan.profile import Block, Profile
from lowtide.sim.timeline import KEPT, Row
from tests.solve.builders import chain

MIB = 2**20
PROFILE = Profile(
    model="Net",
    seconds=1.0,
    peak=111 * MIB,
    blocks=(
        Block(40 * MIB, 0.0, 1.0, Kind.PARAMETER, "layers.0"),
        Block(20 * MIB, 0.0, 1.0, Kind.PARAMETER, "layers.1"),
        Block(30 * MIB, 0.1, 0.8, KEPT, "layers.0.mlp", "aten.mm", "net.py:7"),
        Block(10 * MIB, 0.2, 0.6, KEPT, "layers.1.mlp", "aten.mm", "net.py:7"),
        Block(10 * MIB, 0.5, 0.7, Kind.GRADIENT, "layers.1", "aten.mm"),
        Block(1 * MIB, 0.55, 0.58, Kind.OTHER, ""),
        Block(90 * MIB, 0.3, 0.3, Kind.TEMPORARY, "layers.1"),
    ),
    phases=(("forward", 0.0), ("backward", 0.45)),
    peaks=(111 * MIB, 120 * MIB),
    environment={"torch": "2"},
)


def test_the_peak_is_where_the_most_is_alive():
    assert PROFILE.peak_seconds == 0.55
    assert PROFILE.phase_at(PROFILE.peak_seconds) == "backward"
    assert sum(row.bytes for row in PROFILE.at_peak) == PROFILE.peak
    assert PROFILE.at_peak[0] == Row("parameter", "layers.0", 40 * MIB)
    assert PROFILE.other_share == pytest.approx(1 / 111)


def test_kinds_add_up_at_every_moment():
    for index, moment in enumerate(PROFILE.moments):
        alive = sum(b.bytes for b in PROFILE.alive(moment))
        assert sum(column[index] for column in PROFILE.by_kind.values()) == alive
    assert PROFILE.points[-1][0] == PROFILE.seconds
    assert max(size for _, size in PROFILE.points) == PROFILE.peak


def test_what_the_blocks_miss_of_the_peak_is_other():
    assert replace(PROFILE, peak=222 * MIB).other_share == pytest.approx(112 / 222)


def test_the_words():
    text = str(PROFILE)
    assert text.splitlines()[0] == "Net: peak 111 MiB in backward, at 550.0 ms of 1.00 s"
    assert "parameter 54%  activation kept 36%  gradient 9%  other 0.9%" in text
    assert "|forward" in text
    assert "layers.0-1 x2 " in text
    assert "peaks of 2 steps: 111 MiB, 120 MiB (+8.1%)" in text
    assert str(replace(PROFILE, estimated=True)).startswith(
        "estimated, no device\nNet: peak ~111 MiB"
    )
    assert "cannot be planned: no" in str(replace(PROFILE, environment={"not captured": "no"}))
    assert str(replace(PROFILE, blocks=(), peak=0, seconds=0.0))


@pytest.mark.parametrize("graph", [None, chain(3)])
def test_the_file_holds_the_profile(graph, tmp_path: Path):
    profile = replace(PROFILE, graph=graph)
    loaded = lowtide.load(profile.save(tmp_path / "net.profile.json"))
    assert loaded == profile


def test_reading_needs_no_torch(tmp_path: Path):
    file = PROFILE.save(tmp_path / "net.profile.json")
    code = "import sys, lowtide; print(lowtide.load(sys.argv[1])); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parents[1])},
    )
    assert done.stdout == f"{PROFILE}\nFalse\n"


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("blocks", [[1, 0, 1, 0, 0, 0]]),
        ("blocks", [[1, 0, 1, 0, 0, 0, 99]]),
        ("blocks", [[1, 0, "x", 0, 0, 0, 0]]),
        ("phases", [["forward"]]),
        ("words", [[3]]),
        ("peak", "much"),
        ("graph", {"schema": 1}),
    ],
)
def test_what_is_wrong_in_a_file_is_said(part: str, wrong: object, tmp_path: Path):
    file = PROFILE.save(tmp_path / "net.profile.json")
    content = json.loads(file.read_text())
    del content["schema"], content["hash"]
    write_content(file, {**content, part: wrong})
    with pytest.raises(FileFormatError, match=part):
        lowtide.load(file)


def test_repeated_layers_are_folded():
    rows = fold_layers([("a.0.x.1", 1), ("a.1.x.2", 2), ("a.3.x", 3), ("a.0.y", 9), ("head", 4)])
    assert [(r.name, r.bytes) for r in rows] == [("a.0.y", 9), ("a.0-1,3.x x3", 6), ("head", 4)]
    assert fold_layers([("a.0.x.1", 1), ("a.1.x.2", 2)], depth=0)[0].name == "a.0-1 x2"
    assert fold_layers([(f"a.{i}", 1) for i in range(0, 20, 2)])[0].name == "a.0..18 x10"


def test_a_profile_is_planned_by_its_graph():
    plan = lowtide.plan(replace(PROFILE, graph=chain(12)), budget="70%", seconds=0.5)
    assert plan.peak <= plan.budget
    assert plan.environment == PROFILE.environment


def test_a_profile_without_a_graph_is_not_planned():
    for ask in (lambda p: lowtide.plan(p, budget="70%"), lowtide.frontier):
        with pytest.raises(CaptureError, match="Net holds no graph to plan: too clever"):
            ask(replace(PROFILE, environment={"not captured": "too clever"}))
