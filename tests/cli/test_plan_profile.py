"""A ResNet-50 is planned from its profile's file in seconds, without torch."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = "import sys; sys.modules['torch'] = None; from lowtide.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
def test_from_a_file_without_torch(tmp_path: Path) -> None:
    import torch

    import lowtide
    from lowtide.bench.models import resnet50

    with torch.device("meta"):
        model, batch = resnet50()
    saved = tmp_path / "resnet50.profile.json"
    lowtide.profile(model, batch, fake=True).save(saved)
    command = [
        sys.executable,
        "-c",
        CODE,
        "plan",
        str(saved),
        "--budget",
        "60%",
        "--seconds",
        "5",
        "-f",
    ]
    for _ in range(2):  # the first may have to compile the search
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        seconds = time.perf_counter() - started
        assert done.returncode == 0, done.stderr
    assert "fits: peak" in done.stdout
    assert seconds < 10
