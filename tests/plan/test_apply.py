"""A saved plan runs with the same bits, on the model it was made for and on no other."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.errors import FileFormatError, PlanMismatchError
from lowtide.ir.json import graph_hash
from lowtide.plan.plan import Plan
from tests.training import QUICK, differences, fit_or_floor

pytestmark = pytest.mark.usefixtures("estimated")


def net(activation: type[nn.Module] = nn.GELU) -> nn.Module:
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(32, 32), activation(), nn.Dropout(0.2))]
    return nn.Sequential(*layers)


def batch() -> tuple[Tensor]:
    return (torch.linspace(-1, 1, 64 * 32).reshape(64, 32),)


@pytest.fixture
def plan() -> Plan:
    return fit_or_floor(net(), batch(), "80%")


def test_the_file_holds_the_plan(plan: Plan, tmp_path: Path):
    loaded = lowtide.load(plan.save(tmp_path / "net.plan.json"))
    assert isinstance(loaded, Plan)
    assert loaded == plan
    assert loaded.peak == plan.peak
    assert str(loaded) == str(plan)


def test_the_same_bits_after_apply(plan: Plan, tmp_path: Path):
    loaded = lowtide.load(plan.save(tmp_path / "net.plan.json"))
    model = net()
    lowtide.apply(model, loaded)
    assert differences(net(), model, batch()) == []


def test_the_same_file_every_time(plan: Plan, tmp_path: Path):
    assert plan.save(tmp_path / "a").read_bytes() == plan.save(tmp_path / "b").read_bytes()


def test_the_file_says_the_graphs_hash(plan: Plan, tmp_path: Path):
    assert graph_hash(plan.graph) in plan.save(tmp_path / "net.plan.json").read_text()


def test_the_hash_is_the_graphs(plan: Plan):
    again = fit_or_floor(net(), batch(), "90%")
    assert graph_hash(again.graph) == graph_hash(plan.graph), (
        "costs and budget do not change what the graph is"
    )
    other = fit_or_floor(net(nn.Tanh), batch(), "90%")
    assert graph_hash(other.graph) != graph_hash(plan.graph)


def test_another_activation_is_refused(plan: Plan):
    model = net(nn.Tanh)
    lowtide.apply(model, plan)
    with pytest.raises(PlanMismatchError, match=r"layer 1 .*gelu.*tanh"):
        model(*batch())


def test_a_call_without_gradients_needs_no_plan(plan: Plan):
    model = net(nn.Tanh)
    lowtide.apply(model, plan)
    with torch.no_grad():
        assert model(*batch()).shape == (64, 32)


@pytest.mark.parametrize("what", ["program", "budget", "graph"])
def test_an_edited_file_is_refused(plan: Plan, tmp_path: Path, what: str):
    file = plan.save(tmp_path / "net.plan.json")
    content = json.loads(file.read_text())
    if what == "program":
        content["program"][0].pop()
    elif what == "budget":
        content["budget"] *= 2
    else:
        content["graph"]["ops"][0], content["graph"]["ops"][1] = (
            content["graph"]["ops"][1],
            content["graph"]["ops"][0],
        )
    file.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="damaged or was edited"):
        lowtide.load(file)


def test_a_failed_save_leaves_the_old_file(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from lowtide.plan import format as plan_format

    file = plan.save(tmp_path / "net.plan.json")
    before = file.read_bytes()

    def full(*_: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(plan_format, "dump", full)
    with pytest.raises(OSError, match="disk full"):
        plan.save(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net.plan.json"]


def test_a_tighter_plan_from_a_saved_one(plan: Plan, tmp_path: Path):
    loaded = lowtide.load(plan.save(tmp_path / "net.plan.json"))
    tight = lowtide.plan(loaded, int(loaded.floor * 1.02) + 64, seconds=0.3)
    model = net()
    lowtide.apply(model, tight)
    assert differences(net(), model, batch()) == []


def test_apply_twice_and_fit_after(plan: Plan):
    model = net()
    lowtide.apply(model, plan)
    lowtide.apply(model, plan)
    assert differences(net(), model, batch()) == []
    lowtide.fit(model, batch(), budget="100%", **QUICK)
    assert differences(net(), copy.deepcopy(model), batch()) == []
    assert differences(net(), model, batch()) == []
