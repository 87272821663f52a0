"""How does planning grow with the graph? One plan at 60% of the unplanned peak, for graphs of a thousand to fifty thousand ops.

The graphs are deeper and deeper GPTs: a captured one of six blocks whose middle block is repeated (`bench/replicate.py`). Each is planned in a
fresh process, `python -m lowtide.bench.planner_scale`, whose peak memory is the row's; what is compiled on first use is compiled
before the clock starts. *First plan* is when a program within the budget exists, *planned* when the planner returns: it searches on
until its time limit, or until it stops finding anything, so neither shows how the work grows. *At least* does: the processor time of
a plan that is given no time to search, which is everything that no limit shortens.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lowtide.bench.planner_graphs import captured, graph_file, ready, sheet
from lowtide.bench.replicate import find_blocks, replicate
from lowtide.bench.warm import warm_up
from lowtide.errors import LowtideError
from lowtide.ir.graph import Graph
from lowtide.ir.program import unplanned
from lowtide.plan.format import load_file
from lowtide.sim.memory import simulate
from lowtide.solve.planner import Progress, solve
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["SIZES", "ScaleRow", "exponent", "measure", "scale", "scale_table"]

SIZES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
_MODEL = "gpt"
_SHARE = 0.6
_NO_TIME = 1e-3


@dataclass(frozen=True)
class ScaleRow:
    ops: int
    """That run in the unplanned step."""
    blocks: int
    """That were added to the captured six."""
    least_seconds: float
    """Processor time of a plan without a search: what grows with the graph whatever the time limit."""
    first_seconds: float | None
    """Until a program within the budget existed; None if it never did."""
    planning_seconds: float
    processor_seconds: float
    """The same by the process's own clock, which runs only while the process does: for busy machines."""
    overhead: float
    gap: float
    memory: int
    """Peak resident bytes of the process."""
    graph_memory: int
    """The same before planning began: the interpreter and the graph."""
    status: str


def scale(
    sizes: Sequence[int] = SIZES,
    *,
    seconds: float = 60.0,
    device: str = "A100",
    folder: Path | None = None,
) -> Iterator[ScaleRow]:
    blocks = find_blocks(captured(_MODEL, folder))
    small = _running(blocks.graph)
    block = _running(replicate(blocks, 1)) - small
    for size in sizes:
        copies = max(0, math.ceil((size - small) / block))
        yield _in_a_process(graph_file(_MODEL, folder), copies, seconds, device)


def _running(graph: Graph) -> int:
    return len(simulate(graph, unplanned(graph)).moments)


def _in_a_process(path: Path, copies: int, seconds: float, device: str) -> ScaleRow:
    command = [sys.executable, "-m", "lowtide.bench.planner_scale"]
    arguments = [str(path), str(copies), str(seconds), device]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise LowtideError(f"planning {copies} more blocks failed: {words[-1]}")
    return ScaleRow(**json.loads(done.stdout))


def measure(base: Graph, copies: int, seconds: float, device: str) -> ScaleRow:
    """Plan the base with so many more blocks, here and now."""
    costs = sheet(device)
    warm_up()
    graph = ready(replicate(find_blocks(base), copies), costs)
    before = simulate(graph, unplanned(graph))
    budget = int(_SHARE * before.peak)
    graph_memory = _resident()
    least = time.process_time()
    solve(graph, budget, seconds=_NO_TIME)
    least = time.process_time() - least
    first: list[float] = []

    def note(progress: Progress) -> None:
        if not first and math.isfinite(progress.seconds):
            first.append(time.perf_counter() - started)

    started, used = time.perf_counter(), time.process_time()
    result = solve(graph, budget, seconds=seconds, report=note)
    took, used = time.perf_counter() - started, time.process_time() - used
    return ScaleRow(
        ops=len(before.moments),
        blocks=copies,
        least_seconds=least,
        first_seconds=first[0] if first else None,
        planning_seconds=took,
        processor_seconds=used,
        overhead=result.seconds / before.seconds - 1,
        gap=result.gap,
        memory=_resident(),
        graph_memory=graph_memory,
        status=str(result.status),
    )


def _resident() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float | None:
    """k of the n^k that fits best, on a logarithmic scale."""
    if len(set(sizes)) < 2 or min(times, default=0) <= 0:
        return None
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread


def scale_table(rows: Sequence[ScaleRow]) -> str:
    """Markdown."""
    lines = [
        "| ops | at least | first plan | planned | processor | overhead | gap | memory | of it the graph |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fits = row.status != "infeasible"
        cells = [
            str(row.ops), format_seconds(row.least_seconds), "-" if row.first_seconds is None else format_seconds(row.first_seconds),
            format_seconds(row.planning_seconds), format_seconds(row.processor_seconds), format_percent(row.overhead) if fits else "-",
            f"{100 * row.gap:.1f}%" if fits else "-", format_bytes(row.memory), format_bytes(row.graph_memory),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _growth(rows)])


def _growth(rows: Sequence[ScaleRow]) -> str:
    sizes = [row.ops for row in rows]
    reference = exponent(sizes, [n * math.log(n) for n in sizes])
    least = exponent(sizes, [row.least_seconds for row in rows])
    told = "GPT blocks, repeated from a captured step of six; costs estimated from a data sheet."
    if reference is None or least is None:
        return told
    return f"{told} Planning takes at least n^{least:.2f} seconds; n log n is n^{reference:.2f} over these sizes."


def _main(path: str, copies: str, seconds: str, device: str) -> None:
    base = load_file(path)
    if not isinstance(base, Graph):
        raise LowtideError(f"{path} holds a {type(base).__name__.lower()}; expected a graph")
    row = measure(base, int(copies), float(seconds), device)
    sys.stdout.write(json.dumps(asdict(row)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
