"""Which program keeps exactly these storages and recomputes the rest? What all classic methods share.

Goes in: a `Graph` and the storages to keep across segment boundaries. Comes out: a `Program`. The forward runs as
captured. In a later segment a storage that was not kept is remade when an op first asks for it, together with whatever
that needs and is not there, in captured order, and then held until its last use: nothing is recomputed twice in a
segment. That is how Chen's and Echo's rewrites and PyTorch's partitioner behave, so a baseline is only a choice of
what to keep.

Storages that cannot be remade are kept whatever the choice says; values with `keep=False` never are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.sim.memory import simulate
from lowtide.solve.baselines.remaking import Remaking, remaking

__all__ = ["Keep", "fastest_fitting", "program_keeping", "write_program"]

Keep = AbstractSet[str] | Callable[[str], bool]


def program_keeping(graph: Graph, keep: Keep) -> Program:
    """The program that keeps these storages across segment boundaries and recomputes the others on demand."""
    return write_program(remaking(graph), keep)


def write_program(way: Remaking, keep: Keep) -> Program:
    """`program_keeping` for callers that try several choices on one graph."""
    wanted = keep if callable(keep) else keep.__contains__
    kept = {s for s in way.made if way.graph.value[s].keep and wanted(s)}
    return Program(
        tuple(tuple(_steps(way, kept, segment)) for segment in range(len(way.graph.segments)))
    )


def fastest_fitting(graph: Graph, budget: int, programs: Iterable[Program]) -> Program:
    """The fastest program whose simulated peak is within the budget; failing that, the one with the smallest peak."""
    timed = [(simulate(graph, program), program) for program in programs]
    fitting = [(t.seconds, t.peak, i) for i, (t, _) in enumerate(timed) if t.peak <= budget]
    smallest = [(t.peak, t.seconds, i) for i, (t, _) in enumerate(timed)]
    return timed[min(fitting or smallest)[2]][1]


def _steps(way: Remaking, kept: AbstractSet[str], segment: int) -> Iterator[str]:
    reads, makes = way.folded.reads, way.folded.makes
    here: set[str] = set()
    for name in way.captured.steps[segment]:
        for again in _remakes(way, kept, segment, here, reads[name]):
            here.update(makes[again])
            yield again
        here.update(makes[name])
        yield name
    required = [way.graph.storage(r.value) for r in way.graph.required if r.segment == segment]
    yield from _remakes(way, kept, segment, here, required)


def _remakes(
    way: Remaking,
    kept: AbstractSet[str],
    segment: int,
    here: AbstractSet[str],
    wanted: Iterable[str],
) -> list[str]:
    """The ops to run, in order, so that everything wanted is there. `here` is what this segment has made so far."""
    ways = way.ways[segment]
    found: set[str] = set()
    pending = list(wanted)
    while pending:
        storage = pending.pop()
        if storage in here or (storage in kept and way.made[storage] < segment):
            continue
        if storage in ways.lost:
            raise GraphError(
                f"'{storage}' is read in {way.graph.segments[segment].name}, is marked never to be kept, and no op "
                f"may make it again there; drop the mark or give it a maker that may rerun"
            )
        name = ways.maker.get(storage)
        if name is not None and name not in found:
            found.add(name)
            pending.extend(way.folded.reads[name])
    return sorted(found, key=ways.rank.__getitem__)
