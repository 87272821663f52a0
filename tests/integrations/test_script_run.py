"""Do whole scripts run under the command as under `python`?"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "fit-a-script.md").read_text()
DOOR = f"import sys; sys.path.insert(1, {str(ROOT / 'src')!r}); from lowtide.cli import main; sys.exit(main())"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], check=False, cwd=folder, capture_output=True, text=True
    )


def lowtide(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-c", DOOR, *words)


def test_usage_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    assert lowtide(tmp_path, "run", "--budget", "lots", "x.py").returncode == 2
    assert lowtide(tmp_path, "run", "--budget", "6GiB").returncode == 2
    assert lowtide(tmp_path, "run", "x.py").returncode == 2


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path) -> None:
    (script,) = re.findall(r'```python title="train.py"\n(.*?)```', PAGE, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    commands = re.findall(r"^\$ (.*) train.py$", PAGE, flags=re.MULTILINE)
    assert "lowtide run --budget 70%" in commands
    plain = run(tmp_path, "train.py")
    words = ("run", "--json", "--budget", "70%", "-o", "it.plan.json", "train.py")
    ours = lowtide(tmp_path, *words)
    assert plain.stdout.count("loss") == 8
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    facts = json.loads(ours.stderr.splitlines()[-1])
    assert facts["peak_after"] <= facts["budget"] < facts["peak_before"]
    again = lowtide(tmp_path, "run", "--plan", "it.plan.json", "train.py")
    assert (again.returncode, again.stdout) == (0, plain.stdout)
    (tmp_path / "train.py").write_text(script.replace("64", "32"))
    other = lowtide(tmp_path, "run", "--plan", "it.plan.json", "train.py")
    assert other.returncode == 1
    assert "F040" in other.stderr


@pytest.mark.slow
def test_an_exception_in_the_middle_is_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())\n"
        "for i in range(6):\n"
        "    model(torch.ones(64, 8)).sum().backward()\n"
        "    print(i, flush=True)\n"
        "    if i == 4:\n"
        "        raise RuntimeError('four')\n"
    )
    plain, ours = (
        run(tmp_path, "train.py"),
        lowtide(tmp_path, "run", "--budget", "1GiB", "train.py"),
    )
    assert ours.returncode == plain.returncode == 1
    assert ours.stdout == plain.stdout
    assert plain.stderr in ours.stderr


@pytest.mark.slow
def test_all_ranks_run_rank_0s_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "dist.init_process_group('gloo')\n"
        "torch.manual_seed(0)\n"
        "layers = [nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(4)]\n"
        "model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(48, 8)))\n"
        "optimizer = torch.optim.Adam(model.parameters(), 1e-3)\n"
        "torch.manual_seed(dist.get_rank())\n"
        "for _ in range(8):\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.randn(2048, 48)).pow(2).mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "total = sum(p.double().sum() for p in model.parameters()).item()\n"
        "door = model.module._compiled_call_impl\n"
        "plan = door.session.saved.program if door else None\n"
        "plans = [None, None]\n"
        "dist.all_gather_object(plans, plan)\n"
        "print(f'{total} {plans[0] == plans[1]}\\n', end='', flush=True)\n"  # at once: there are two
        "dist.destroy_process_group()\n"
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plain = run(tmp_path, *torchrun, "train.py")
    (tmp_path / "door.py").write_text(DOOR)
    ours = run(
        tmp_path, *torchrun, "door.py", "run", "--budget", "80%", "--seconds", "3", "train.py"
    )
    assert ours.returncode == 0, ours.stderr
    assert sorted(ours.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert ours.stdout.count("True") == 2
    assert ours.stderr.count("lowtide: peak") == 1
