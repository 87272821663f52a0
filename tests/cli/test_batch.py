"""Does `lowtide batch` find the size that a budget allows, and say what it needs to be told?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
from torch import nn
size = int(sys.argv[sys.argv.index("--size") + 1])
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(size, 64)).square().mean().backward()
    optimizer.step()
"""


def batch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "lowtide", "batch", *words]
    return subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)


def test_usage(tmp_path: Path) -> None:
    missing = batch(tmp_path, "--budget", "4MiB", "train.py", "--size", "8")
    assert missing.returncode == 2
    assert "{}" in missing.stderr
    share = batch(tmp_path, "--budget", "60%", "train.py", "--size", "{}")
    assert share.returncode == 2


@pytest.mark.slow
def test_a_script(tmp_path: Path) -> None:
    words = ("--json", "--budget", "4MiB", "--start", "512", "--most", "4096", "--steps", "2", "--seconds", "2")  # fmt: skip
    done = batch(tmp_path, *words, "train.py", "--size", "{}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 512 < found["largest"] < 8192
    assert found["best"] in [one["size"] for one in found["timed"]]
    assert all(one["peak"] <= 4 * 2**20 for one in found["timed"])
    broken = batch(tmp_path, *words, "train.py", "--width", "{}")
    assert broken.returncode == 1
    assert "ValueError" in broken.stderr
