"""Does the meter see what other code allocates, stretch by stretch?"""

import torch

from lowtide.measure.meter import Meter

CPU = torch.device("cpu")
MB = 1_000_000


def block(count: int = 1) -> torch.Tensor:
    return torch.empty(count * MB, dtype=torch.uint8)


def test_each_stretch_has_its_own_peak() -> None:
    meter = Meter(CPU)
    meter.start()
    kept = block()
    block(5)
    meter.mark()
    block(2)
    meter.pause()
    block(100)
    meter.resume()
    meter.mark()
    del kept
    block()
    assert meter.stop() == [6 * MB, 3 * MB, MB]


def test_it_gives_way_to_the_users_profiler() -> None:
    meter = Meter(CPU)
    meter.start()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        block().add(1)
        assert meter.stop() is None
    assert any(e.key == "aten::add" for e in theirs.key_averages())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        meter.start()
        assert meter.stop() is None
