"""The race of kernels against `torch.clone` runs: what it calls exists, and takes what it is given."""

from __future__ import annotations

import benchmarks.kernels as race


def test_every_kernel_runs() -> None:
    made = race.works(1 << 14, side=16)
    assert "clone" in made
    for name, (work, size) in made.items():
        assert race.seconds(work) > 0, name
        assert size > 0, name
