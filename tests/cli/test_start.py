"""The command starts at once: help, explain and usage errors import neither torch nor numpy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HEAVY = ("torch", "numpy", "numba", "scipy", "rich")


def imported_by(*arguments: str) -> set[str]:
    """The heavy modules that `lowtide ARGUMENTS` imports."""
    code = (
        "import sys; from lowtide.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', *[m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["plan", "--help"],
        ["report", "--help"],
        ["explain", "F012"],
        ["explain", "F999"],
        ["plan", "x.graph.json", "--budget", "lots"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments: list[str]):
    assert imported_by(*arguments) == set()


def test_help_starts_in_half_a_second():
    def once() -> float:
        start = time.perf_counter()
        command = [sys.executable, "-m", "lowtide", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.startswith("usage: lowtide")
        return time.perf_counter() - start

    assert min(once() for _ in range(3)) < 0.5
