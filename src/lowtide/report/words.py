"""What is the answer in one line, and what does it rest on? The verdict and the facts of a report, in words and numbers.

What was predicted is written `~532 MiB`, what was measured `532 MiB`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind
from lowtide.ir.json import graph_hash
from lowtide.ir.program import unplanned
from lowtide.plan.plan import Plan
from lowtide.plan.profile import Profile
from lowtide.sim.memory import simulate
from lowtide.units import format_bytes, format_percent, format_seconds

__all__ = ["Cell", "Fact", "Verdict", "facts_of", "verdict_of"]

GOOD, BAD, CARE, PLAIN = "good", "bad", "care", "plain"
ARROW = " \u2192 "
_MEASURED_OFF = 0.05
"""A measured peak that differs by more from the predicted one is worth a look."""


@dataclass(frozen=True, slots=True)
class Cell:
    label: str
    value: str
    note: str = ""
    tone: str = PLAIN


@dataclass(frozen=True)
class Verdict:
    tone: str
    headline: str
    note: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    tone: str = PLAIN


def verdict_of(source: Graph | Plan | Profile) -> Verdict:
    if isinstance(source, Plan):
        return _of_plan(source)
    return _of_profile(source) if isinstance(source, Profile) else _of_graph(source)


def _of_plan(plan: Plan) -> Verdict:
    measured = plan.measured_peak
    highest = plan.peak if measured is None else measured
    fits = plan.status != "infeasible" and highest <= plan.budget
    return Verdict(
        GOOD if fits else BAD,
        "Fits" if fits else "Does not fit",
        f"in {format_bytes(plan.budget)}",
        (_peak_cell(plan), _time_cell(plan), _gap_cell(plan), _bits_cell(plan)),
    )


def _peak_cell(plan: Plan) -> Cell:
    less = format_percent(plan.peak / plan.unplanned_peak - 1) if plan.unplanned_peak else ""
    note = f"{less} of the unplanned step"
    if plan.measured_peak is not None:
        note = f"{less}, measured {format_bytes(plan.measured_peak)}"
    value = f"~{format_bytes(plan.unplanned_peak)}{ARROW}~{format_bytes(plan.peak)}"
    return Cell("Peak memory", value, note)


def _time_cell(plan: Plan) -> Cell:
    value = f"~{format_seconds(plan.unplanned_seconds)}{ARROW}~{format_seconds(plan.seconds)}"
    return Cell("Step time", value, format_percent(plan.overhead))


def _gap_cell(plan: Plan) -> Cell:
    if plan.status == "optimal":
        return Cell("Best possible", "Proved", "no plan within the budget is faster", GOOD)
    note = f"slower at most than any plan can be ({plan.status})"
    return Cell("Proven gap", f"{100 * plan.gap:.1f}%", note)


def _bits_cell(plan: Plan) -> Cell:
    if plan.exact:
        return Cell("Gradients", "Same bits", plan.exact_how or "as without a plan", GOOD)
    error = plan.gradient_error
    note = "error not measured" if error is None else f"measured error {error:.0e}"
    lossy = "lossy" in plan.allow
    return Cell("Gradients", "Lossy" if lossy else "To rounding", note, CARE)


def _of_profile(profile: Profile) -> Verdict:
    about = "~" if profile.estimated else ""
    size, time = format_bytes(profile.peak), format_seconds(profile.seconds)
    kinds: dict[str, int] = {}
    for row in profile.at_peak:
        kinds[row.kind] = kinds.get(row.kind, 0) + row.bytes
    kind, most = max(kinds.items(), key=lambda pair: pair[1], default=("nothing", 0))
    share = 100 * most / profile.peak if profile.peak else 0.0
    return Verdict(
        PLAIN,
        "Estimated" if profile.estimated else "Observed",
        "no device, nothing ran" if profile.estimated else "one step, not planned",
        (
            Cell("Peak memory", f"{about}{size}", f"in {profile.phase_at(profile.peak_seconds)}"),
            Cell("Step time", f"{about}{time}", _steps_seen(profile)),
            Cell("Most of it", f"{share:.0f}%", f"{kind}, {format_bytes(most)}"),
            Cell("Not attributed", f"{100 * profile.other_share:.1f}%", "of the peak"),
        ),
    )


def _steps_seen(profile: Profile) -> str:
    if len(profile.peaks) < 2 or not profile.peaks[0]:
        return "one step"
    grown = format_percent(profile.peaks[-1] / profile.peaks[0] - 1)
    return f"{len(profile.peaks)} steps seen, peak {grown} from the first to the last"


def _of_graph(graph: Graph) -> Verdict:
    step = simulate(graph, unplanned(graph))
    return Verdict(
        PLAIN,
        "Not planned",
        "a captured step",
        (
            Cell("Peak memory", f"~{format_bytes(step.peak)}", "simulated"),
            Cell("Step time", f"~{format_seconds(step.seconds)}", "sum of its ops"),
            Cell("Operators", f"{len(graph.captured)}", f"{len(graph.ops)} with those of rules"),
        ),
    )


Group = tuple[str, tuple[Fact, ...]]


def facts_of(
    source: Graph | Plan | Profile, measured: Profile | None, file: Mapping[str, str]
) -> tuple[Group, ...]:
    groups = [
        ("Predicted and measured", tuple(_compared(source, measured))),
        ("Gradients", tuple(_gradients(source))),
        ("Search", tuple(_search(source))),
        ("Graph", tuple(_graph_facts(source))),
        ("Environment", _as_facts({} if isinstance(source, Graph) else source.environment)),
        ("File", _as_facts(file)),
    ]
    return tuple((title, facts) for title, facts in groups if facts)


def _as_facts(words: Mapping[str, str]) -> tuple[Fact, ...]:
    return tuple(Fact(name, value) for name, value in words.items())


def _compared(source: Graph | Plan | Profile, measured: Profile | None) -> Iterator[Fact]:
    if isinstance(source, Plan):
        found = measured.peak if measured is not None else source.measured_peak
        yield _pair("peak", source.peak, found)
        seconds = measured.seconds if measured is not None else None
        words = "not measured" if seconds is None else f"measured {format_seconds(seconds)}"
        yield Fact("step time", f"~{format_seconds(source.seconds)}, {words}")
    elif isinstance(source, Profile) and source.graph is not None and not source.estimated:
        step = simulate(source.graph, unplanned(source.graph))
        # The first step of an optimizer has no state yet; plans count with it.
        state = sum(r.bytes for r in source.at_peak if r.kind == Kind.OPTIMIZER)
        held = source.graph.held.get(Kind.OPTIMIZER, 0)
        name = "peak without optimizer state" if held else "peak"
        yield _pair(name, step.peak - held, source.peak - state)
        words = f"measured {format_seconds(source.seconds)}"
        yield Fact("step time", f"~{format_seconds(step.seconds)}, {words}")


def _pair(name: str, predicted: int, measured: int | None) -> Fact:
    if not measured:
        return Fact(name, f"~{format_bytes(predicted)}, not measured")
    off = predicted / measured - 1
    apart = "within 0.1%" if abs(off) < 1e-3 else f"{format_percent(off)} off"
    words = f"~{format_bytes(predicted)}, measured {format_bytes(measured)}: {apart}"
    return Fact(name, words, CARE if abs(off) > _MEASURED_OFF else GOOD)


def _gradients(source: Graph | Plan | Profile) -> Iterator[Fact]:
    if not isinstance(source, Plan):
        return
    cell = _bits_cell(source)
    yield Fact("bits", f"{cell.value.lower()} ({cell.note})", cell.tone)
    if source.allow:
        yield Fact("allowed", ", ".join(source.allow))
    if source.other_kernels:
        yield Fact("ops by another kernel", ", ".join(source.other_kernels))
    for words in source.covers:
        yield Fact("covers", words)


def _search(source: Graph | Plan | Profile) -> Iterator[Fact]:
    if not isinstance(source, Plan):
        return
    yield Fact("status", f"{source.status} by {source.solver}")
    yield Fact("took", format_seconds(source.solve_seconds))
    yield Fact("no plan is faster than", f"{format_seconds(source.lower_bound)} (proved)")
    yield Fact("smallest peak found", f"~{format_bytes(source.floor)}")
    if source.why:
        yield Fact("how", source.why)


def _graph_facts(source: Graph | Plan | Profile) -> Iterator[Fact]:
    graph = source if isinstance(source, Graph) else source.graph
    if graph is None:
        yield Fact("captured", "no: this profile cannot be planned")
        return
    added = len(graph.ops) - len(graph.captured)
    yield Fact("ops", f"{len(graph.captured)} captured, {added} more offered by rules")
    fixed = sum(not op.rerun or op.effect for op in graph.captured)
    if fixed:
        yield Fact("ops that run once only", f"{fixed}: random, or with an effect")
    pieces = len({segment.piece for segment in graph.segments})
    yield Fact("pieces", f"{pieces}")
    yield Fact("hash", graph_hash(graph))
