"""Which program does a captured graph get that runs more than once in a step? It has one, however often it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lowtide.execute.caller import AFTER, BEFORE
from lowtide.execute.pieces import graph_number, home_of, part, runs_of
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program
from lowtide.sim.memory import simulate
from lowtide.solve.result import Result, Status

__all__ = ["tie"]

_CANDIDATES = 12
"""Programs tried for a graph that runs more than once."""


def tie(graph: Graph, result: Result, target: int) -> Result:
    """The result with one program for each captured graph, however often it runs: the fastest that fits, else the smallest."""
    groups: dict[int, list[int]] = {}
    for run in range(runs_of(graph)):
        groups.setdefault(graph_number(graph, run), []).append(run)
    program = result.program
    for runs in groups.values():
        if len(runs) > 1:
            program = _tied(graph, program, runs, target)
    if program == result.program:
        return result
    timeline = simulate(graph, program)
    fits = timeline.peak <= target
    return replace(
        result,
        status=Status.FEASIBLE if fits else Status.INFEASIBLE,
        program=timeline.program,
        seconds=timeline.seconds,
        peak=timeline.peak,
        floor=min(result.floor, timeline.peak) if fits else timeline.peak,
    )


def _tied(graph: Graph, program: Program, runs: Sequence[int], target: int) -> Program:
    choices = dict.fromkeys(part(graph, program, run).program for run in runs)
    tried = [_with(graph, program, runs, c) for c in list(choices)[:_CANDIDATES]]

    def worth(choice: Program) -> tuple[bool, float]:
        timeline = simulate(graph, choice)
        fits = timeline.peak <= target
        return (not fits, timeline.seconds if fits else float(timeline.peak))

    return min(tried, key=worth)


def _with(graph: Graph, program: Program, runs: Sequence[int], choice: Program) -> Program:
    """The program with this choice for all of these runs."""
    steps = list(program.steps)
    for run in runs:
        for segment, names in zip(home_of(graph, run), choice.steps):
            mine = [n for n in steps[segment] if graph.op[n].target in (BEFORE, AFTER)]
            first = [n for n in mine if graph.op[n].target == BEFORE]
            last = [n for n in mine if graph.op[n].target == AFTER]
            steps[segment] = (*first, *(f"{run}/{n}" for n in names), *last)
    return Program(tuple(steps))
