"""A step is captured from shapes alone, as it is from real tensors; and a repeated block is what a deeper model gives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.bench.models import gpt
from lowtide.bench.planner_graphs import MODELS, ready, sheet
from lowtide.bench.planner_models import MAKERS
from lowtide.bench.replicate import find_blocks, replicate
from lowtide.capture.fake import capture_fake
from lowtide.errors import CaptureError
from lowtide.ir.graph import Graph, Kind
from lowtide.ir.json import graph_hash
from lowtide.ir.program import unplanned
from lowtide.sim.memory import simulate


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh().sum()


def test_shapes_are_enough_for_a_step_that_would_not_fit():
    graph = capture_fake(lambda: (Net(10**6), (torch.randn(8, 10**6),)))  # 4 TB of weights
    weights = [v for v in graph.values if v.kind is Kind.PARAMETER]
    assert sorted(v.bytes for v in weights) == [4 * 10**6, 4 * 10**12]
    assert len([r for r in graph.required if r.segment == 1]) == 2
    assert {o.segment for o in graph.ops} == {0, 1}


def test_the_graph_is_the_one_that_fit_captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    plan = lowtide.fit(Net(8), torch.randn(2, 8), budget="1GiB", rules=(), verify=False)
    fake = capture_fake(lambda: (Net(8), (torch.randn(2, 8),)))
    assert graph_hash(fake) == graph_hash(plan.graph.as_captured())


def test_nothing_to_train_is_said():
    with pytest.raises(CaptureError):
        capture_fake(lambda: (Net(4).requires_grad_(False), (torch.randn(2, 4),)))


def test_the_models_are_those_that_the_bench_names():
    assert tuple(MAKERS) == MODELS


def facts(graph: Graph) -> Any:
    graph = ready(graph, sheet("A100"))
    timeline = simulate(graph, unplanned(graph))
    targets = Counter((o.target, o.segment, o.rule) for o in graph.ops)
    return timeline.peak, pytest.approx(timeline.seconds), targets, len(graph.required)


@pytest.mark.slow
def test_a_repeated_block_is_what_a_deeper_model_gives():
    def captured(layers: int) -> Graph:
        return capture_fake(lambda: gpt(2, 16, 32, 16, layers, 2))

    assert facts(replicate(find_blocks(captured(6)), 3)) == facts(captured(9))
