"""The process that captures one model of `lowtide bench planner`: python -m lowtide.bench.planner_capture NAME FILE SIZES."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lowtide.bench.planner_models import MAKERS
from lowtide.capture.fake import capture_fake
from lowtide.plan.format import save_graph

__all__ = ["capture_to"]


def capture_to(name: str, path: Path, sizes: dict[str, int]) -> None:
    graph = capture_fake(lambda: MAKERS[name](**sizes))
    save_graph(graph, path, {"captured": "on fake tensors", "torch": torch.__version__})


if __name__ == "__main__":
    capture_to(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
