"""`lowtide profile`: an unmodified script's first step, observed; the script's own arguments, output and status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import lowtide
from lowtide.cli import main
from lowtide.ir.graph import Kind
from lowtide.plan.profile import Profile

TRAIN = """
    import sys, torch
    from torch import nn
    print("arguments", sys.argv[1:])
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.no_grad():
        model(torch.randn(2, 64))
    for step in range(4):
        optimizer.zero_grad()
        images, labels = torch.randn(512, 64), torch.randint(0, 8, (512,))
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print("step", step)
    sys.exit(7)
"""
TWO = """
    import torch
    from torch import nn
    class Maker(nn.Linear): pass
    class Judge(nn.Linear): pass
    maker, judge = Maker(16, 64), Judge(64, 1)
    one = torch.optim.SGD(maker.parameters(), lr=0.1)
    other = torch.optim.SGD(judge.parameters(), lr=0.1)
    for step in range(3):
        made = maker(torch.randn(128, 16))
        other.zero_grad()
        judge(made.detach()).mean().backward()
        other.step()
        one.zero_grad()
        judge(made).mean().backward()
        one.step()
        print("step", step)
"""


def profile(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(dedent(text))
    source = str(Path(lowtide.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "lowtide", "profile", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )


def load(file: Path) -> Profile:
    found = lowtide.load(file)
    assert isinstance(found, Profile)
    return found


def test_a_script_is_observed_and_stopped(tmp_path: Path):
    done = profile(tmp_path, TRAIN, "--no-graph", "train.py", "--rate", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:2] == ["arguments ['--rate', '1']", "step 0"]
    found = load(tmp_path / "train.profile.json")
    assert lines[2:-1] == str(found).splitlines()
    assert lines[-1] == ("wrote train.profile.json     next: lowtide report train.profile.json")
    assert found.model == "Sequential"
    assert found.other_share < 0.01
    assert [name for name, _ in found.phases] == ["forward", "backward", "optimizer"]
    assert {"0", "2"} <= {b.layer for b in found.blocks if b.kind == Kind.GRADIENT}
    assert "train.py:12" in {b.source for b in found.blocks}
    state = sum(b.bytes for b in found.blocks if b.kind == Kind.OPTIMIZER)
    weights = 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert 2 * weights <= state <= 2 * weights + 100
    batch = sum(b.bytes for b in found.blocks if b.kind == Kind.BATCH)
    assert batch >= 512 * 64 * 4
    assert found.graph is None
    again = profile(tmp_path, TRAIN, "train.py")
    assert again.returncode == 2
    assert "F050 train.profile.json exists: -f overwrites it" in again.stderr


@pytest.mark.slow
def test_what_was_observed_can_be_planned(tmp_path: Path):
    done = profile(tmp_path, TRAIN, "train.py")
    assert done.stdout.splitlines()[-1] == (
        "wrote train.profile.json     next: lowtide plan train.profile.json --budget 60%"
    )
    found = load(tmp_path / "train.profile.json")
    assert found.graph is not None
    assert lowtide.plan(found, "80%", seconds=1.0).peak <= 0.8 * found.peak


def test_a_module_of_several_models_goes_on_to_its_end(tmp_path: Path):
    more = ("--steps", "2", "--go-on", "--json", "-o", "two.profile.json", "-m", "train")
    done = profile(tmp_path, TWO + "    raise SystemExit(7)\n", *more)
    assert done.returncode == 7
    assert done.stderr.splitlines() == ["step 0", "step 1", "step 2"]
    facts = json.loads(done.stdout)
    assert facts["model"] == "Maker + Judge"
    assert len(facts["peaks"]) == 2
    assert facts["plannable"] is False
    found = load(tmp_path / "two.profile.json")
    assert {b.layer for b in found.blocks if b.kind == Kind.PARAMETER} == {"Maker", "Judge"}
    assert "several models" in str(found)


def test_a_script_whose_model_is_larger_than_the_machine(tmp_path: Path):
    large = TRAIN.replace("256", "40_000_000").replace("sys.exit(7)", "")
    done = profile(tmp_path, large, "--fake", "train.py")
    assert done.returncode == 0, done.stderr
    found = load(tmp_path / "train.profile.json")
    assert found.estimated
    assert found.peak > 100 * 2**30
    assert "estimated, no device\nSequential: peak ~" in done.stdout
    assert done.stdout.endswith("next: lowtide plan train.profile.json --budget 60%\n")


def test_a_script_that_does_not_train(tmp_path: Path):
    done = profile(tmp_path, "print('hello')", "train.py")
    assert done.returncode == 2
    assert done.stdout == "hello\n"
    assert "F050 train.py ended without a training step" in done.stderr


def test_wrong_calls(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["profile"]) == 2
    assert "nothing to profile" in capsys.readouterr().err
    assert main(["profile", "-o", str(tmp_path / "no" / "x.json"), "train.py"]) == 2
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["profile", "--steps", "0", "train.py"])
