"""What a user reads when something cannot be done: the code, the cause with numbers, the next step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.errors import (
    BudgetError,
    BudgetFormatError,
    CaptureError,
    FileFormatError,
    LowtideError,
    NoGradientError,
    NoTensorOutputError,
    OptionError,
    PlanMismatchError,
)
from tests.training import QUICK, loss_of

pytestmark = pytest.mark.usefixtures("estimated")


class Net(nn.Module):
    def __init__(self, depth: int = 6, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32 if i == 0 else width, width) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


BATCH = (torch.ones(64, 32),)


def fit(model: nn.Module, args: Any = BATCH, **options: Any) -> Any:
    return lowtide.fit(model, args, **{"budget": "90%", **QUICK, **options})


def test_an_infeasible_budget_says_the_floor_its_parts_and_two_ways_out():
    model = Net()
    with pytest.raises(BudgetError) as caught:
        fit(model, budget="20KiB")
    error = caught.value
    words = str(error)
    assert words.startswith("F012 ")
    assert error.exit_code == 3
    assert error.floor > 20 * 1024
    assert "20.0 KiB" in words
    assert re.search(r"floor = .*parameters.* KiB", words)
    ways = next(line for line in words.splitlines() if line.strip().startswith("try"))
    assert ways.count("|") == 1, "two ways out"
    assert all(re.search(r"\d", way) for way in ways.split("|")), "with numbers"
    assert "lowtide explain F012" in words
    suggested = re.search(r'budget="([^"]+)"', ways)
    assert suggested is not None
    plan = fit(model, budget=suggested[1])
    assert plan.peak <= plan.budget, "what it suggests works"


def test_a_feasible_part_of_the_batch_is_suggested_where_the_model_itself_fits():
    with pytest.raises(BudgetError, match=r"a batch of at most ~\d+% of this one"):
        fit(Net(), (torch.ones(1024, 32),), budget="200KiB")


def test_the_traceback_ends_in_our_words_not_in_the_compilers():
    with pytest.raises(BudgetError) as caught:
        fit(Net(), budget="20KiB")
    files = [entry.path for entry in caught.traceback]
    assert not any("_dynamo/output_graph" in str(f) for f in files)


@pytest.mark.parametrize(
    "budget", ["lots", "6gib", "6G", "-1GiB", "0%", "", 0.5, 0, -5, True, None, "1,5GiB"]
)
def test_budgets_that_are_none(budget: Any):
    with pytest.raises(BudgetFormatError) as caught:
        fit(Net(), budget=budget)
    assert str(caught.value).startswith("F011 ")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "serch"}, "did you mean 'search'?"),
        ({"solver": 3}, "3"),
        ({"executor": "atem"}, "did you mean 'aten'?"),
        ({"allow": ("lossi",)}, "did you mean 'lossy'?"),
        ({"allow": "rounding up"}, "did you mean 'rounding'?"),
        ({"seconds": 0}, "seconds=0"),
        ({"seconds": float("nan")}, "seconds=nan"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], words: str):
    model = Net()
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        fit(model, **options)
    assert str(caught.value).startswith("F050 ")
    assert caught.value.exit_code == 2
    assert model._compiled_call_impl is None


def test_not_a_module():
    with pytest.raises(OptionError, match=r"nn\.Module, not function"):
        lowtide.fit(lambda x: x, BATCH, budget="90%")  # type: ignore[arg-type]


def test_nothing_is_trained():
    with pytest.raises(NoGradientError, match="12 parameters"):
        fit(Net().requires_grad_(False))
    with pytest.raises(NoGradientError):
        fit(nn.ReLU())


def test_the_output_needs_no_gradient():
    class Detached(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(NoGradientError, match="no output of the model needs a gradient"):
        fit(Detached())


def test_fitting_under_no_grad():
    with torch.no_grad(), pytest.raises(NoGradientError):
        fit(Net())


@pytest.mark.parametrize("output", [None, 3.0, "text", []])
def test_outputs_without_tensors(output: Any):
    class Strange(Net):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            return output

    with pytest.raises(NoTensorOutputError, match="holds no tensor") as caught:
        fit(Strange())
    assert type(output).__name__ in str(caught.value)


# Plans and files.


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return fit(Net(), budget="100%").save(tmp_path / "net.plan.json")


def run(model: nn.Module, args: Any = BATCH) -> None:
    loss_of(model(*args)).backward()


@pytest.mark.parametrize(
    ("other", "args", "words"),
    [
        (Net(depth=7), BATCH, r"layers\.6"),
        (Net(width=16), BATCH, r"layers\.0"),
        (Net(), (torch.ones(32, 32),), r"layers\.0"),
    ],
)
def test_a_plan_of_another_graph_names_the_first_difference(
    saved: Path, other: nn.Module, args: Any, words: str
):
    lowtide.apply(other, lowtide.load(saved))
    with pytest.raises(PlanMismatchError, match=words) as caught:
        run(other, args)
    assert str(caught.value).startswith("F040 ")
    assert "lowtide.fit" in str(caught.value)


def test_a_damaged_file(saved: Path):
    text = saved.read_text()
    for damaged in (
        text[: len(text) // 2],
        text.replace('"budget"', '"bugdet"', 1),
        "",
        "[]",
        "\x00\x01",
    ):
        saved.write_text(damaged)
        with pytest.raises(FileFormatError, match=re.escape(str(saved))) as caught:
            lowtide.load(saved)
        assert str(caught.value).startswith("F041 ")


def test_a_file_of_another_version(saved: Path):
    saved.write_text(
        saved.read_text()
        .replace('"schema":1', '"schema":99')
        .replace('"schema": 1', '"schema": 99')
    )
    with pytest.raises(FileFormatError, match="schema 99"):
        lowtide.load(saved)


def test_no_file(tmp_path: Path):
    with pytest.raises(FileFormatError, match="no file"):
        lowtide.load(tmp_path / "nothing.plan.json")


def test_a_folder(tmp_path: Path):
    with pytest.raises(LowtideError):
        lowtide.load(tmp_path)


# What PyTorch cannot capture.


def test_a_custom_op_without_a_fake_implementation():
    @torch.library.custom_op("lowtide_tests::no_fake", mutates_args=())
    def no_fake(x: Tensor) -> Tensor:
        return x * 2

    class Model(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x + no_fake(x.detach())  # this line

    with pytest.raises(CaptureError) as caught:
        fit(Model())
    words = str(caught.value)
    assert words.startswith("F020 ")
    assert Path(__file__).name in words
    assert "no_fake" in words


def test_an_error_inside_the_backend(monkeypatch: pytest.MonkeyPatch):
    from lowtide.execute import session

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr(session, "convert", fails)
    with pytest.raises(CaptureError, match="RuntimeError: inside") as caught:
        fit(Net())
    assert caught.value.__cause__ is not None


def test_a_forward_that_dynamo_skips():
    class Model(Net):
        @torch.compiler.disable
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    model = Model()
    with pytest.raises(CaptureError, match="no graph"):
        fit(model)
    assert model._compiled_call_impl is None
