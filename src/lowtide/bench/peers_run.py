"""What did the comparison with the peers find? Runs it model by model, and keeps two files up to date: a page and its data.

Both files are written anew after each row and each round, so that whatever stops the run leaves what was done.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lowtide import __version__
from lowtide.bench.models import make
from lowtide.bench.peers import PEERS, Contest, Peer, clock
from lowtide.bench.race import Duel, Row, duels
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Report", "compare"]

_PAGE, _DATA = "peers.md", "peers.json"
Json = dict[str, Any]


@dataclass
class Found:
    """Of one model."""

    name: str
    rows: list[Row] = field(default_factory=list)
    floor: int | None = None
    rounds: int = 0

    @property
    def duels(self) -> list[Duel]:
        return duels(self.rows)

    @property
    def lowest(self) -> tuple[Row | None, Row | None]:
        """The least peak of Lowtide and of the peers whose gradients are right."""
        right = [r for r in self.rows if r.right and r.peak is not None]
        sides = ([r for r in right if r.ours], [r for r in right if not r.ours])
        ours, theirs = (min(side, key=lambda r: r.peak or 0, default=None) for side in sides)
        return ours, theirs


@dataclass
class Report:
    folder: Path
    rounds: int
    seconds: float
    models: list[Found] = field(default_factory=list)
    left: tuple[str, ...] = ()
    """Models that were asked for and not finished."""
    began: float = field(default_factory=time.time)

    @property
    def page(self) -> Path:
        return self.folder / _PAGE

    def save(self) -> None:
        for name, text in ((_PAGE, self.text()), (_DATA, json.dumps(self.data(), indent=1))):
            part = self.folder / f"{name}.part"
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.folder / name)

    def text(self) -> str:
        return "\n\n".join([_heading(self), *(_section(m, self.rounds) for m in self.models)])

    def data(self) -> Json:
        return {
            "environment": _environment(self.began),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "left": self.left,
            "models": {m.name: _model_data(m) for m in self.models},
        }

    def next(self) -> str:
        """What to type now: the models left, a closer look where nothing was decided, or the plan that did worst."""
        if self.left:
            return f"lowtide bench peers --models {','.join(self.left)} -o {self.folder}-rest"
        open_ = [m.name for m in self.models if any(d.verdict == "even" for d in m.duels)]
        if open_:
            again = f"--models {','.join(open_)} --rounds {2 * self.rounds + 1}"
            return f"lowtide bench peers {again} -o {self.folder}-more"
        fought = [(d.ratio, m, d) for m in self.models for d in m.duels if d.ratio]
        if not fought:
            return "lowtide bench peers --help"
        _, model, worst = max(fought, key=lambda f: f[0])
        return f"lowtide report {_plan_file(self.folder, model.name, worst.ours)}"


def compare(
    models: Sequence[str],
    folder: Path,
    *,
    rounds: int = 7,
    seconds: float = 30.0,
    peers: Sequence[Peer] = PEERS,
    tell: Callable[[str], None] = lambda line: None,
) -> Report:
    """Ctrl-C ends it with what is done so far."""
    report = Report(folder, rounds, seconds, left=tuple(models))
    folder.mkdir(parents=True, exist_ok=True)
    with _interrupts() as stopped:
        try:
            for name in models:
                _compare_one(report, name, peers, tell, stopped)
                report.left = report.left[1:]
        except KeyboardInterrupt:
            tell("stopped: what was done is kept")
    report.save()
    return report


def _compare_one(
    report: Report,
    name: str,
    peers: Sequence[Peer],
    tell: Callable[[str], None],
    stopped: Callable[[], None],
) -> None:
    torch._dynamo.reset()
    found = Found(name)
    report.models.append(found)

    def entered(row: Row) -> None:
        found.rows.append(row)
        report.save()
        tell(f"{name:13s} {_line(row)}")
        stopped()

    contest = Contest(*make(name), seconds=report.seconds, tell=entered)
    contest.enter_peers(peers)
    contest.enter_lowtide()
    contest.enter_lowest()
    found.floor = contest.floor
    for row in contest.rows:
        if row.name in contest.plans:
            contest.plans[row.name].save(_plan_file(report.folder, name, row))
    for done in contest.race(report.rounds):
        found.rounds = done
        report.save()
        stopped()
    for duel in found.duels:
        tell(f"{name:13s} {duel.peer.name:12s} {_duel_words(duel)}")
    tell(f"{name:13s} {_lowest_words(found)}")


def _plan_file(folder: Path, model: str, row: Row) -> Path:
    return folder / f"{model}-{row.budget}.plan.json"


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt if Ctrl-C was ever pressed: a planner that is interrupted returns the best
    plan so far, and the run would go on."""
    pressed: list[int] = []

    def press(number: int, frame: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def stopped() -> None:
        if pressed:
            raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not in the main thread, where Ctrl-C does not arrive
        yield stopped
        return
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


# As text.

_ROW = ("variant", "peak", "step time", "vs eager", "results", "ready in", "predicted")
_DUEL = ("peer", "its peak", "Lowtide's peak", "Lowtide's time", "at equal peak")


def _heading(report: Report) -> str:
    facts = _environment(report.began)
    return (
        "# Lowtide and its peers on real steps\n\n"
        f"{facts['date']}, {facts['processor']}, threads: {facts['threads']}, torch {facts['torch']}, lowtide {facts['lowtide']}. "
        f"Peak: allocator events of one step, parameters and batch included. Time: {facts['clock']}, median and quartiles of {report.rounds} "
        f"rounds, all variants in turn. Results: gradients and buffers against the eager step with the same seed. Lowtide planned for at most "
        f"{report.seconds:g} s; `ratio` is torch's activation_memory_budget under aot_eager."
    )


def _section(found: Found, rounds: int) -> str:
    eager = found.rows[0].seconds if found.rows else None
    rows = [_cells(row, eager) for row in found.rows]
    parts = [f"## {found.name}", _table(_ROW, rows)]
    if found.duels and found.rounds:
        cells = [
            (d.peer.name, _size(d.peer.peak), _size(d.ours.peak), _ratio(d), d.verdict)
            for d in found.duels
        ]
        parts.append(_table(_DUEL, cells))
    if found.rows:
        parts.append(_lowest_words(found))
    if found.rounds < rounds:
        parts.append(f"Not finished: {found.rounds} of {rounds} rounds.")
    return "\n\n".join(parts)


def _cells(row: Row, eager: float | None) -> tuple[str, ...]:
    if row.failed:
        return (row.name, "", "", "", row.failed, "", "")
    low, high = row.quartiles or (row.seconds, row.seconds)
    spread = f" ({low:.3f} .. {high:.3f})" if low is not None and high is not None else ""
    overhead = row.predicted_overhead
    return (
        row.name,
        _size(row.peak),
        f"{format_seconds(row.seconds)}{spread}" if row.seconds else "",
        format_percent(row.seconds / eager - 1) if row.seconds and eager else "",
        str(row.agreement),
        format_seconds(row.ready_seconds),
        "" if overhead is None else f"~{format_percent(overhead)}",
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(row: Row) -> str:
    said = row.failed or f"{_size(row.peak)}, {row.agreement}"
    return f"{row.name:20s} {said} (ready in {format_seconds(row.ready_seconds)})"


def _duel_words(duel: Duel) -> str:
    return f"{_size(duel.peer.peak):9s} {_ratio(duel)} {duel.verdict}"


def _ratio(duel: Duel) -> str:
    if duel.ratio is None:
        return ""
    spread = f" ({duel.quartiles[0]:.2f} .. {duel.quartiles[1]:.2f})" if duel.quartiles else ""
    return f"x {duel.ratio:.2f}{spread}"


def _lowest_words(found: Found) -> str:
    ours, theirs = found.lowest
    said = [
        f"Lowtide {_size(ours.peak)}" if ours else "Lowtide none",
        f"the peers {_size(theirs.peak)} ({theirs.name})" if theirs else "the peers none",
    ]
    wrong = [r for r in found.rows if not r.ours and not r.failed and not r.right]
    if wrong:
        least = min(wrong, key=lambda r: r.peak or 0)
        said.append(f"with wrong gradients {_size(least.peak)} ({least.name})")
    return f"Lowest peak: {', '.join(said)}."


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


# As data.


def _model_data(found: Found) -> Json:
    ours, theirs = found.lowest
    return {
        "rows": [_row_data(row) for row in found.rows],
        "rounds": found.rounds,
        "floor": found.floor,
        "at_equal_peak": [
            {
                "peer": d.peer.name,
                "lowtide": d.ours.name,
                "ratio": d.ratio,
                "quartiles": d.quartiles,
                "verdict": d.verdict,
            }
            for d in found.duels
        ],
        "lowest": {
            "lowtide": ours.peak if ours else None,
            "peers": theirs.peak if theirs else None,
            "peer": theirs.name if theirs else None,
        },
        "geometric_mean_ratio": _mean([d.ratio for d in found.duels if d.ratio]),
    }


def _row_data(row: Row) -> Json:
    data = {**asdict(row), "seconds": row.seconds, "right": row.right}
    if row.agreement is not None:
        # JSON has no infinity.
        errors = {k: v if v != math.inf else None for k, v in asdict(row.agreement).items()}
        data["agreement"] = {**errors, "words": str(row.agreement)}
    return data


def _mean(ratios: Sequence[float]) -> float | None:
    return statistics.geometric_mean(ratios) if ratios else None


def _environment(began: float) -> Json:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": "processor time" if clock() is time.process_time else "wall time",
        "torch": str(torch.__version__),
        "lowtide": __version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
