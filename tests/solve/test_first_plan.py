"""The first plan on a machine has the same time as any other: what is compiled is compiled before its clock starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = """
from lowtide.solve.planner import solve
from tests.solve.builders import chain

result = solve(chain(12), 909, seconds=0.5)
assert result.peak <= 909, result
assert result.solve_seconds < 5.0, result
"""


@pytest.mark.slow
def test_compiling_takes_no_time_from_the_first_plan(tmp_path: Path):
    nothing_compiled = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PLAN], env=nothing_compiled, cwd=here, text=True, capture_output=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
