"""Real steps of a tiny model against peers that are right, wrong, broken or interrupted."""

from __future__ import annotations

import copy
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lowtide.bench import peers_run
from lowtide.bench.models import MODELS, Trained, make
from lowtide.bench.peers import (
    EAGER,
    Contest,
    Peer,
    Step,
    agreement,
    at_ratio,
    checkpoint_blocks,
    compile_aot_eager,
)
from lowtide.bench.race import Row
from lowtide.cli import main


@pytest.fixture(autouse=True)
def one_thread(fresh_torch: None) -> None:
    """Threads that wait for each other make tiny steps slow where other work is going on."""
    torch.set_num_threads(1)


SMALL = {
    "resnet50": {"batch": 2, "size": 32, "width": 4},
    "googlenet": {"batch": 2, "size": 32},
    "vgg16": {"batch": 2, "size": 32, "width": 4},
    "mobilenet_v2": {"batch": 2, "size": 32},
    "unet": {"batch": 2, "size": 16, "width": 4, "depth": 2},
    "gpt": {"batch": 2, "length": 8, "words": 16, "width": 16, "layers": 2},
    "nmt": {"batch": 2, "length": 4, "words": 16, "width": 8},
    "word_lm": {"batch": 2, "length": 4, "words": 16, "width": 8},
}


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.3), nn.Tanh(), nn.Linear(64, 16))


class Tiny(Trained):
    """Blocks with dropout, wide inside, so that there is something to save."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(block() for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def tiny() -> tuple[Tiny, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Tiny(), (torch.randn(4096, 16),)


def forget_the_seed(model: Trained) -> None:
    for block in model.blocks():
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )


CHECKPOINT = Peer("checkpoint", checkpoint_blocks)
FORGETFUL = Peer("forgetful", forget_the_seed)


def fail(model: Trained) -> None:
    raise RuntimeError("no such kernel\nand more")


def test_wrong_gradients_and_failures_are_rows():
    told: list[Row] = []
    contest = Contest(*tiny(), tell=told.append)
    contest.enter_peers([EAGER, CHECKPOINT, FORGETFUL, Peer("broken", fail)])
    assert list(contest.race(2)) == [1, 2]
    eager, checkpointed, forgetful, broken = told
    assert str(eager.agreement) == str(checkpointed.agreement) == "same bits"
    assert str(forgetful.agreement).startswith("WRONG gradients")
    assert broken.failed == "RuntimeError: no such kernel"
    assert checkpointed.peak < eager.peak
    assert [len(r.times) for r in told] == [2, 2, 2, 0]


def test_lowtide_keeps_to_the_peak_it_is_given():
    contest = Contest(*tiny(), seconds=0.5)
    contest.enter_peers([EAGER])
    contest.enter_lowtide()
    eager, planned = contest.rows
    assert planned.rivals == ("eager",)
    assert planned.peak <= planned.budget == eager.peak
    assert str(planned.agreement) == "same bits"
    assert planned.predicted_peak == contest.plans[planned.name].peak


def test_a_budget_out_of_reach_is_a_row():
    contest = Contest(*tiny(), seconds=0.2)
    assert not contest.fit(Row("Lowtide", ("eager",), 1000))
    assert contest.rows[0].failed.startswith("not reached: needs ")


def test_each_ratio_has_compiled_code_of_its_own():
    model, args = tiny()
    peaks = []
    for ratio in (1.0, 0.0):
        one = copy.deepcopy(model)
        compile_aot_eager(one)
        step = Step(one, args, Peer("ratio", compile_aot_eager, partial(at_ratio, ratio)))
        step()
        peaks.append(step.peak())
    assert peaks[0] != peaks[1]


def test_a_step_begins_with_the_buffers_it_is_given():
    model, (images, labels) = make("unet", **SMALL["unet"])
    step = Step(copy.deepcopy(model), (images, labels), EAGER)
    first = step.results(list(model.buffers()))
    assert str(agreement(step.results(list(model.buffers())), first)) == "same bits"
    assert agreement(step.results(list(step.model.buffers())), first).wrong_buffers


def test_errors_are_relative_and_a_missing_gradient_is_infinite():
    expected = {"a": torch.tensor([3.0, 4.0]), "zero on paper": torch.tensor([1e-9]), "none": None}
    close = {**expected, "a": torch.tensor([3.0, 4.5]), "zero on paper": torch.tensor([-1e-9])}
    assert agreement((close, {}), (expected, {})).gradients == pytest.approx(0.1, rel=1e-4)
    assert agreement((close, {}), (expected, {})).worst_gradient == "a"
    for bad in (None, torch.tensor([3.0, float("nan")])):
        assert agreement(({**expected, "a": bad}, {}), (expected, {})).gradients == float("inf")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_blocks_to_checkpoint(name: str):
    model, args = make(name, **SMALL[name])
    plain = Step(copy.deepcopy(model), args, EAGER)
    step = Step(copy.deepcopy(model), args, CHECKPOINT)
    calls = []
    for block in step.model.blocks():
        block.register_forward_hook(lambda *_: calls.append(1))
    checkpoint_blocks(step.model)
    buffers = list(model.buffers())
    found, expected = step.results(buffers), plain.results(buffers)
    assert not agreement(found, expected).wrong
    assert len(calls) >= len(step.model.blocks()) > 0


@pytest.fixture
def tiny_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_run, "make", lambda name: tiny())


def read(folder: Path) -> tuple[str, dict]:
    return (folder / "peers.md").read_text(), json.loads((folder / "peers.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_zoo")
def test_who_wins_who_is_wrong_and_who_failed(tmp_path: Path):
    said: list[str] = []
    peers = [EAGER, CHECKPOINT, FORGETFUL, Peer("broken", fail)]
    report = peers_run.compare(
        ["tiny"], tmp_path, rounds=2, seconds=0.5, peers=peers, tell=said.append
    )
    (found,) = report.models
    row = {r.name: r for r in found.rows}
    assert str(row["eager"].agreement) == str(row["checkpoint"].agreement) == "same bits"
    assert str(row["forgetful"].agreement).startswith("WRONG gradients")
    assert row["broken"].failed == "RuntimeError: no such kernel"
    assert row["checkpoint"].peak < row["eager"].peak

    # Lowtide is given each peak that was reached, and keeps to it. On a busy machine half a second may not be enough for
    # the tighter ones; the peak of the eager step is always within reach.
    assert {d.peer.name for d in found.duels} == {"eager", "checkpoint", "forgetful"}
    ours = [r for r in found.rows if r.ours and not r.failed]
    assert "eager" in {name for r in ours for name in r.rivals}
    for one in ours:
        assert one.right
        assert one.peak <= one.budget <= min((row[n].peak for n in one.rivals), default=one.budget)
    lowest, others = found.lowest
    assert others is row["checkpoint"]  # the forgetful one needs less still
    assert lowest.peak == min(r.peak for r in ours)
    assert all(len(r.times) == 2 for r in found.rows if not r.failed)

    page, data = read(tmp_path)
    assert "WRONG gradients" in page
    assert "peer WRONG" in page
    assert "RuntimeError: no such kernel" in page
    assert len(data["models"]["tiny"]["rows"]) == len(found.rows)
    assert len(said) == len(found.rows) + len(found.duels) + 1
    assert len(list(tmp_path.glob("tiny-*.plan.json"))) == len(ours)
    assert report.left == ()
    assert report.next().startswith("lowtide ")


def interrupt(model: Trained) -> None:
    raise KeyboardInterrupt


def interrupted_planner(model: Trained) -> None:
    """A planner returns its best plan on Ctrl-C."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        pass


@pytest.mark.usefixtures("tiny_zoo")
@pytest.mark.parametrize(
    ("change", "done"), [(interrupt, ["eager"]), (interrupted_planner, ["eager", "slow"])]
)
def test_ctrl_c_keeps_what_is_done(change, done: list[str], tmp_path: Path):
    peers = [EAGER, Peer("slow", change), FORGETFUL]
    before = signal.getsignal(signal.SIGINT)
    report = peers_run.compare(["tiny", "other"], tmp_path, peers=peers)
    assert signal.getsignal(signal.SIGINT) is before
    page, data = read(tmp_path)
    assert [r["name"] for r in data["models"]["tiny"]["rows"]] == done
    assert "| eager |" in page
    assert "Not finished: 0 of 7 rounds." in page
    assert report.left == ("tiny", "other")
    assert "--models tiny,other" in report.next()


def test_a_model_that_does_not_exist_is_refused(tmp_path: Path, capsys):
    assert main(["bench", "peers", "--models", "gtp", "-o", str(tmp_path / "out")]) == 2
    assert "did you mean 'gpt'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_earlier_report_is_not_overwritten(tmp_path: Path, capsys):
    (tmp_path / "peers.json").write_text("{}")
    assert main(["bench", "peers", "-o", str(tmp_path)]) == 2
    assert "-f overwrites it" in capsys.readouterr().err
