"""pytest: `@pytest.mark.training_memory("200MiB")` fails a test that has more than that allocated at once.

Counted is what the test allocates, net of what was there when it began (`lowtide.measure_peak`). Torch is imported for marked tests only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["pytest_configure", "pytest_pyfunc_call"]

_WORDS = "training_memory(size): fail if the test has more bytes of tensors allocated at once, as in training_memory('200MiB')"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _WORDS)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    marker = pyfuncitem.get_closest_marker("training_memory")
    if marker is None:
        return (yield)
    import torch

    from lowtide.measure.meter import Meter
    from lowtide.units import format_bytes, parse_bytes

    most = parse_bytes(str(marker.args[0]))
    meter = Meter(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))
    meter.start()
    try:
        result = yield
    finally:
        peaks = meter.stop()
    if peaks is None:
        pytest.fail("training_memory: a torch profiler of the test's own ran, so nothing was measured")  # fmt: skip
    if max(peaks) > most:
        pytest.fail(
            f"training_memory: {format_bytes(max(peaks))} allocated at once, {format_bytes(max(peaks) - most)} over "
            f"{format_bytes(most)}"
        )
    return result
