"""The race of LSTM layers runs, and says what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.bench.layers import Layers, Shape, race_layers
from lowtide.kernels.loops import COMPILED


@pytest.fixture(scope="module")
def found() -> Layers:
    return race_layers((Shape(2, 6, 8, 32), Shape(1, 12, 8, 32)), rounds=1)


def test_a_row_for_each_shape(found: Layers, tmp_path: Path) -> None:
    page = found.save(tmp_path / "out").read_text()
    assert page.count("\n| 2 | 6 | 8 | 32 |") == 1
    assert page.count("\n| 1 | 12 | 8 | 32 |") == 1
    assert (tmp_path / "out" / "lstm.json").exists()


@pytest.mark.skipif(not COMPILED, reason="without numba torch's ops run")
def test_less_is_kept_than_by_torch(found: Layers) -> None:
    for entry in found.entries:
        assert entry.kept["states"] < entry.kept["gates"] < entry.kept["torch"] / 2
        assert min(entry.milliseconds.values()) > 0


@pytest.mark.slow
def test_inductor_s_unrolled_form_runs_too() -> None:
    (entry,) = race_layers((Shape(1, 4, 8, 16),), rounds=1, unrolled=4).entries
    assert entry.milliseconds["unrolled"] > 0
    assert entry.compiling is not None
