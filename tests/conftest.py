"""What every test starts from: its own folder for measurements, two threads, no compilations of other tests.

Torch is not imported here, so that the torch-free tests stay as fast as the torch-free code.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every run; `pytest --hypothesis-profile=explore` looks for new ones.
# What Hypothesis draws depends on the constants in our sources: how much of it is filtered says nothing about them.
_UNASKED = (HealthCheck.filter_too_much, HealthCheck.too_slow)
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=_UNASKED
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("fixed")


@pytest.fixture(autouse=True, scope="session")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Op costs are measured once per test session, and never mixed with the user's own."""
    before = os.environ.get("LOWTIDE_CACHE_DIR")
    os.environ["LOWTIDE_CACHE_DIR"] = str(tmp_path_factory.mktemp("lowtide"))
    yield
    if before is None:
        del os.environ["LOWTIDE_CACHE_DIR"]
    else:
        os.environ["LOWTIDE_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """Where torch is loaded: two threads, a known seed, and nothing compiled before."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    if (torch := sys.modules.get("torch")) is None:
        return
    logging.getLogger(
        "torch.__trace"
    ).disabled = True  # thousands of empty lines under a failed test
    torch.set_num_threads(2)
    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if (timing := sys.modules.get("lowtide.measure.timing")) is not None:
        timing.LOOKS = 1  # enough where nothing depends on which plan is the fastest


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Op costs are estimated, not measured: which plan is chosen does not matter to the test, only that it runs."""
    from lowtide.measure import timing

    monkeypatch.setattr(timing, "_cost_or_none", lambda *_: None)
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path_factory.mktemp("estimated")))
