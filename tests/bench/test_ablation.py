"""`lowtide bench rules` on a small model: what it writes, and that the numbers belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowtide.bench import ablation
from lowtide.bench.ablation import FRACTIONS, VARIANTS, ablate


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(32, 32) for _ in range(6)]
        self.body = nn.Sequential(*(m for one in layers for m in (one, nn.ReLU(), nn.Dropout(0.1))))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


@pytest.fixture(autouse=True)
def tiny_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "make", lambda name: (Tiny(), (torch.randn(512, 32),)))


@pytest.mark.slow
def test_every_variant_is_planned_run_and_compared(tmp_path: Path):
    said: list[str] = []
    found = ablate(["tiny"], tmp_path, rounds=2, seconds=0.3, tell=said.append)
    rows = found.entries["tiny"]
    assert {"none", "mask", "replay", "all of these"} <= {r.variant for r in rows} <= set(VARIANTS)
    assert "pool" not in {r.variant for r in rows}, "nothing to pool here"
    reached = [r for r in rows if r.peak is not None]
    assert "all of these" in {r.variant for r in reached}
    assert {r.fraction for r in rows} == set(FRACTIONS)
    assert all(r.error == 0.0 for r in reached if r.variant != "all, and rounding")
    for row in reached:
        assert row.peak <= found.unplanned["tiny"] * row.fraction * 1.02
        assert len(row.times) == 2
    floor = {v: min(r.floor for r in rows if r.variant == v) for v in ("none", "all of these")}
    assert floor["all of these"] < floor["none"]
    assert said
    saved = json.loads((tmp_path / "rules.json").read_text())
    assert saved["unplanned"] == found.unplanned
    page = (tmp_path / "rules.md").read_text()
    assert "| none |" in page
    assert "same bits" in page
