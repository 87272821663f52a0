"""Is a script stopped after the steps asked for, whatever it calls a step?"""

import pytest
import torch
from torch import nn

from lowtide.integrations.script.pace import Pace


def test_updates_of_one_optimizer_are_steps() -> None:
    pace = Pace(2)
    one, other = (torch.optim.SGD(nn.Linear(1, 1).parameters()) for _ in range(2))
    for _ in range(2):
        pace.updated(one)
        pace.updated(other)
        pace.called(nn.Linear(1, 1), has_optimizers=True)
    assert pace.seconds is not None
    with pytest.raises(SystemExit):
        pace.updated(one)


def test_calls_are_steps_where_there_is_no_optimizer() -> None:
    pace, module = Pace(1), nn.Linear(1, 1)
    pace.called(module, has_optimizers=False)
    assert pace.seconds is None
    with pytest.raises(SystemExit):
        pace.called(module, has_optimizers=False)
    assert pace.seconds is not None


def test_it_only_counts_when_asked() -> None:
    pace, module = Pace(), nn.Linear(1, 1)
    for _ in range(3):
        pace.called(module, has_optimizers=False)
    assert pace.seconds is None
