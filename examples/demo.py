"""ResNet-50 trained in half of its memory, with the same bits.

    python examples/demo.py [--batch 12] [--budget 50%] [--picture FILE.svg]

Measures one plain training step, fits the model into the budget, measures the planned step, and compares every bit of the two. Memory and time
are measured on this machine, while you wait; the picture is drawn from what the allocator reported.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from resnet50 import ResNet50, random_batch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import lowtide
from lowtide.draw.charts import sparkline, timeline_svg
from lowtide.units import format_bytes, format_percent, format_seconds, parse_budget

Step = Callable[[], None]
Timeline = list[tuple[float, int]]
console = Console(highlight=False)
_QUIET = 1.15
"""On a quiet machine the slowest run of a step takes at most this many times as long as the fastest."""


def main() -> int:
    options = parse_arguments()
    torch.manual_seed(0)
    batch = random_batch(options.batch)
    model = ResNet50()
    plain = copy.deepcopy(model)
    console.print(
        f"ResNet-50, batch {options.batch} of 224 x 224, float32, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )

    with phase("measuring the plain step"):
        expected = results(plain, batch)
        before = timeline(plain, batch)
    unplanned_peak = peak(before)
    budget = parse_budget(options.budget)
    size = budget.bytes or int((budget.fraction or 0.5) * unplanned_peak)
    console.print(f"  peak {format_bytes(unplanned_peak)}; budget {format_bytes(size)}")

    with phase("fitting: capture, measure the operators, plan, verify"):
        plan = lowtide.fit(model, batch, budget=size, seconds=options.seconds)
    console.print(str(plan), style="dim", soft_wrap=True)

    with phase("measuring the planned step"):
        got = results(model, batch)  # fit left parameters and statistics as they were
        after = timeline(model, batch)
    with phase("timing both, in turn"):
        seconds = interleave([step_of(plain, batch), step_of(model, batch)], options.rounds)

    different = [name for name, tensor in expected.items() if not torch.equal(tensor, got[name])]
    console.print(table(peak(before), peak(after), size, seconds, plan))
    show_lines(before, after, unplanned_peak)
    say_bits(different, len(expected))
    draw(
        options.picture,
        stretch(before, seconds[0]),
        stretch(after, seconds[1]),
        size,
        options.batch,
    )
    plan.save("resnet50.plan.json")
    wrote = f"wrote {options.picture}, resnet50.plan.json"
    console.print(f"{wrote}     next: lowtide report resnet50.plan.json", soft_wrap=True)
    return 0 if peak(after) <= size and not different else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument(
        "--budget", default="50%", help="a size, or a share of the plain step's peak"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long the solver may search"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each step is timed")
    parser.add_argument("--picture", type=Path, default=Path("resnet50.svg"))
    return parser.parse_args()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say what is going on, with a spinner on a terminal, and how long it took."""
    start = time.perf_counter()
    if console.is_terminal:
        with console.status(name):
            yield
    else:
        yield
    console.print(f"{name}: {time.perf_counter() - start:.0f} s")


def step_of(model: nn.Module, batch: tuple[Tensor, ...]) -> Step:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(*batch).backward()

    return step


def results(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Loss, gradients and running statistics after one step."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = model(*batch)
    loss.backward()
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters()}
    found = {"loss": loss, **gradients, **dict(model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def timeline(model: nn.Module, batch: tuple[Tensor, ...]) -> Timeline:
    """What was allocated over one step: seconds since its start, bytes. Read from the allocator's own events."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    held = bytes_held([*model.parameters(), *model.buffers(), *batch])
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True, acc_events=True) as run:
        step_of(model, batch)()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events)
    points, now = [(0.0, held)], held
    for moment, change in changes:
        now += change
        points.append(((moment - changes[0][0]) / 1e9, now))
    return points


def bytes_held(tensors: list[Tensor]) -> int:
    storages = [t.untyped_storage() for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def peak(points: Timeline) -> int:
    return max(size for _, size in points)


def stretch(points: Timeline, seconds: float) -> Timeline:
    """Recording allocations slows a step a little: show it as long as it takes without."""
    return [(moment * seconds / points[-1][0], size) for moment, size in points]


def interleave(steps: list[Step], rounds: int) -> list[float]:
    """Median seconds of each, run in turn so that noise hits all alike. Says so where there is too much of it."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, found in zip(steps, times):
            start = time.perf_counter()
            step()
            found.append(time.perf_counter() - start)
    spread = max(max(found) / min(found) for found in times)
    if spread > _QUIET:
        console.print(
            f"the machine is busy: the same step took up to {spread:.1f} times as long as at best, so do not trust the times",
            style="yellow",
            soft_wrap=True,
        )
    return [statistics.median(found) for found in times]


def table(before: int, after: int, budget: int, seconds: list[float], plan: lowtide.Plan) -> Table:
    shown = Table(title="one training step", title_justify="left", title_style="bold")
    for column in ("", "plain", "planned", "change", "predicted"):
        shown.add_column(column, justify="left" if not column else "right")
    shown.add_row(
        "peak memory",
        format_bytes(before),
        format_bytes(after),
        format_percent(after / before - 1),
        f"~{format_bytes(plan.peak)}",
    )
    shown.add_row("budget", "", format_bytes(budget), format_percent(budget / before - 1), "")
    shown.add_row(
        "time",
        format_seconds(seconds[0]),
        format_seconds(seconds[1]),
        format_percent(seconds[1] / seconds[0] - 1),
        f"~{format_percent(plan.overhead)}",
    )
    return shown


def show_lines(before: Timeline, after: Timeline, top: int) -> None:
    width = min(72, console.width - 10)
    for name, points in (("plain  ", before), ("planned", after)):
        console.print(f"{name} {sparkline(points, width=width, top=top)}")


def say_bits(different: list[str], count: int) -> None:
    if different:
        console.print(
            f"{len(different)} of {count} tensors differ, first: {different[0]}", style="red"
        )
    else:
        console.print(f"same bits: loss, gradients and running statistics, all {count} tensors")


def draw(file: Path, before: Timeline, after: Timeline, budget: int, batch: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    title = f"ResNet-50, batch {batch}: memory of one training step"
    file.write_text(timeline_svg(before, after, budget, title=title), encoding="utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except lowtide.LowtideError as error:
        console.print(str(error), style="red", soft_wrap=True)
        sys.exit(error.exit_code)
