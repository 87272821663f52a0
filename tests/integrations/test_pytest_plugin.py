"""Does the marker fail tests that allocate too much, and those only?"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
import torch

@pytest.mark.training_memory("3MiB")
@pytest.mark.parametrize("size", [2, 4])
def test_allocates(size):
    torch.zeros(size * 2**20, dtype=torch.uint8)

@pytest.mark.training_memory("3MiB")
def test_fails_by_itself():
    raise ValueError("its own")
"""


def test_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = "" if _installed() else "-plowtide.integrations.pytest_plugin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *filter(None, [plugin])],
        check=False, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip
    assert "2 failed, 1 passed" in done.stdout
    assert "4.00 MiB allocated at once, 1.00 MiB over 3.00 MiB" in done.stdout
    assert "ValueError: its own" in done.stdout


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(e.name == "lowtide" for e in entry_points(group="pytest11"))
