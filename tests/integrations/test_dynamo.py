"""`torch.compile(backend="lowtide")`: options, graphs one by one, sizes that grow."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.integrations import dynamo
from tests.training import step_results

D = 32


def net() -> nn.Sequential:
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(D, D), nn.GELU())])


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = net(), net()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


def compiled(model: nn.Module, budget: Any = "90%", dynamic: bool | None = False, **options: Any):  # type: ignore[no-untyped-def]
    chosen = {"budget": budget, "seconds": 2.0, **options}
    return torch.compile(model, backend="lowtide", options=chosen, dynamic=dynamic)


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_the_same_bits(estimated: None) -> None:
    model, x = net(), torch.randn(64, D)
    found = step_results(
        compiled(copy.deepcopy(model), "80%"), (x,), module=(c := copy.deepcopy(model))
    )
    assert found.output  # the copy's own gradients are not looked at here
    planned = copy.deepcopy(model)
    mine = step_results(compiled(planned, "80%"), (x,), module=planned)
    assert mine.differences(step_results(c, (x,))) == []


def test_peak_within_the_budget() -> None:
    model, x = net(), torch.randn(512, D)
    held = sum(p.nbytes for p in model.parameters()) + x.nbytes
    plain = lowtide.measure_peak(lambda: model(x).sum().backward()) + held
    model.zero_grad(set_to_none=True)
    budget = int(plain * 0.8)
    planned = compiled(model, budget)
    planned(x).sum().backward()
    model.zero_grad(set_to_none=True)
    assert lowtide.measure_peak(lambda: planned(x).sum().backward()) + held <= budget


def test_larger_sizes_are_planned_anew_and_smaller_ones_not(estimated: None) -> None:
    model = net()
    planned = compiled(model, dynamic=True)
    made = []
    for rows in (64, 32, 128, 100, 64):
        before = graphs()
        x = torch.randn(rows, D)
        found = step_results(planned, (x,), module=model)
        made.append(graphs() - before)
        assert found.differences(step_results(copy.deepcopy(model), (x,))) == []
    assert made == [1, 0, 1, 0, 0]


def test_graph_breaks_share_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Broken(), torch.randn(512, D)
    held = sum(p.nbytes for p in model.parameters()) + x.nbytes
    plain = copy.deepcopy(model)
    peak = lowtide.measure_peak(lambda: plain(x).sum().backward()) + held
    budget = int(peak * 0.85)
    planned = compiled(model, budget)
    with caplog.at_level(logging.WARNING, "lowtide"):
        found = step_results(planned, (x,), module=model)
    assert found.differences(step_results(plain, (x,))) == []
    said = [r.getMessage() for r in caplog.records if r.name == "lowtide"]
    assert len(said) == 1
    assert "test_dynamo.py" in said[0]
    assert "lowtide.fit plans them as one" in said[0]
    model.zero_grad(set_to_none=True)
    assert lowtide.measure_peak(lambda: planned(x).sum().backward()) + held <= budget


def test_one_session_for_all_graphs_of_one_compile_call(estimated: None) -> None:
    x = torch.randn(16, D)
    compiled(Broken(), "2GB")(x).sum().backward()
    assert len(dynamo._backends) == 1
    compiled(Broken(), "1GB")(x).sum().backward()
    assert len(dynamo._backends) == 2
    torch._dynamo.reset()
    assert not dynamo._backends


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budgte": "1MB"}, "no option 'budgte'; did you mean 'budget'?"),
        ({"seconds": 3}, "needs a budget"),
        ({"budget": "1MB", "allow": ("lossi",)}, "did you mean 'lossy'?"),
        ({"budget": 0.5}, "0.5"),
    ],
)
def test_wrong_options_are_refused_with_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match="F0") as error:
        torch.compile(net(), backend="lowtide", options=options)(torch.randn(4, D))
    assert words in str(error.value)


def test_without_options_and_with_a_mode(estimated: None) -> None:
    with pytest.raises(Exception, match="needs a budget"):
        torch.compile(net(), backend="lowtide")(torch.randn(4, D))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="mode='max-autotune' is an option of Inductor"):
        torch.compile(net(), backend="lowtide", mode="max-autotune")(torch.randn(4, D))


def test_an_impossible_budget_says_the_floor(estimated: None) -> None:
    with pytest.raises(Exception, match="F012 budget too small"):
        compiled(net(), 1000)(torch.randn(64, D))
