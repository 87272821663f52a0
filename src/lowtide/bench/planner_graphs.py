"""Where do the graphs that planners are compared on come from? Captured once on fake tensors, kept as files, priced by a data sheet.

Goes in: names of the models in `bench/planner_models.py`, and a folder. Comes out: for each a `Graph` with the makers that rules can add without
trying anything on a device, and with the costs of a device that need not be here. A second run finds the files and needs no torch. A file is
used only if it was made from these models with this version of PyTorch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lowtide.cost.analytic import DEVICES, Device
from lowtide.cost.estimated import estimated
from lowtide.errors import CaptureError, FileFormatError, OptionError, did_you_mean
from lowtide.ir.graph import Graph
from lowtide.plan.format import load_file
from lowtide.rules import DEFAULT_RULES, add_makers
from lowtide.settings import settings

__all__ = ["MODELS", "captured", "graph_file", "ready", "sheet"]

MODELS = (
    "resnet50", "googlenet", "vgg16", "mobilenet_v2", "unet", "gpt", "nmt", "word_lm", "gpt2_small", "nmt_unrolled",
)  # fmt: skip


def sheet(name: str) -> Device:
    """The data sheet of a device by its name."""
    known = {device.name.lower(): device for device in DEVICES}
    if name.lower() not in known:
        names = [device.name for device in DEVICES]
        raise OptionError(
            f"no data sheet of {name!r}{did_you_mean(name, names)} Known: {', '.join(names)}"
        )
    return known[name.lower()]


def ready(graph: Graph, device: Device) -> Graph:
    """A captured graph as planners get it."""
    known = [rule for rule in DEFAULT_RULES if not rule.probed]
    return estimated(add_makers(graph, known), device)


def captured(name: str, folder: Path | None = None, **sizes: int) -> Graph:
    """The model's step as captured, from its file if there is one."""
    path = graph_file(name, folder, **sizes)
    if path.exists():
        loaded = load_file(path)
        if not isinstance(loaded, Graph):
            raise FileFormatError(
                f"{path} holds a {type(loaded).__name__.lower()}; expected a graph"
            )
        return loaded
    path.parent.mkdir(parents=True, exist_ok=True)
    _capture(name, path, sizes)
    return captured(name, folder, **sizes)


def graph_file(name: str, folder: Path | None = None, **sizes: int) -> Path:
    """Where the captured graph is kept."""
    sources = (Path(__file__).with_name(n) for n in ("models.py", "planner_models.py"))
    made_from = f"{sorted(sizes.items())} torch {_torch_version()}".encode()
    digest = sha256(b"".join(s.read_bytes() for s in sources) + made_from).hexdigest()[:10]
    return (folder or settings().cache_dir / "graphs") / f"{name}-{digest}.graph.json"


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


def _capture(name: str, path: Path, sizes: dict[str, int]) -> None:
    """In a process of its own, so that torch is not loaded beside the planners."""
    command = [sys.executable, "-m", "lowtide.bench.planner_capture"]
    done = subprocess.run(
        [*command, name, str(path), json.dumps(sizes)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CaptureError(f"{name} could not be captured on fake tensors: {words[-1]}")
