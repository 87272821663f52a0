"""The race of the Echo paper's models runs at a tiny scale, and says what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lowtide.bench.echo import EchoReport, compare_echo
from lowtide.bench.echo_models import bucket, names_of, workload
from lowtide.errors import OptionError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[EchoReport, Path]:
    folder = tmp_path_factory.mktemp("echo")
    report = compare_echo(["lm_200"], folder, scale=0.1, batch=4, most=1, rounds=1, seconds=0.5)
    return report, folder


@pytest.mark.slow
def test_rows_of_the_figure(found: tuple[EchoReport, Path]) -> None:
    (model,) = found[0].models
    names = [row.name for row in model.rows]
    assert names[:5] == ["baseline B", "mirror B", "echo B", "lowtide B", "lowtide 2B"]
    base, low = model.rows[0], model.rows[3]
    assert base.peak is not None
    assert low.peak is not None
    assert low.peak < base.peak
    assert low.features < base.features
    assert all(row.failed or row.per_second for row in model.rows)


@pytest.mark.slow
def test_parts_add_up_and_are_written(found: tuple[EchoReport, Path]) -> None:
    report, folder = found
    for row in report.models[0].rows:
        assert sum(row.layers.values()) == sum(row.kinds.values())
    assert "| rnn |" in (folder / "echo.md").read_text()
    assert len(json.loads((folder / "echo.json").read_text())["models"]) == 1
    assert (folder / "echo.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", names_of([]))
def test_every_model_has_gradients(name: str) -> None:
    load = workload(name, 0.02)
    load.model(*load.make_batch(2)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in load.model.parameters())


def test_lengths_are_those_of_sentences() -> None:
    assert [bucket(q) for q in (0.05, 0.5, 0.9)] == [10, 20, 40]
    assert bucket(0.9999) == 100
    assert torch.is_tensor(workload("tbd", 0.02).make_batch(3)[0])
    with pytest.raises(OptionError, match="tbd"):
        names_of(["tdb"])
