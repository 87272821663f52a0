"""What comes of given answers? Plays them into a rollout, weighs it, and turns it into a program.

A `Player` owns the buffers that compiled code works in, so threads that search side by side have one each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.program import Program
from lowtide.sim.memory import Timeline
from lowtide.solve.anneal import FASTEST, anneal, evaluate
from lowtide.solve.gaps import DROP, NEVER, Lists
from lowtide.solve.neighbours import Moves, make_undo
from lowtide.solve.problem import Problem
from lowtide.solve.rollout import FAILED, Arrays
from lowtide.solve.sweeps import SweepBuffers, Sweeps, sweep_buffers

__all__ = ["Answers", "Buffers", "Player"]

_LONGEST = 12
"""A program may be at most this many times as long as the captured step."""
_Array = NDArray[Any]


@dataclass(frozen=True)
class Answers:
    """One answer for each gap, and what follows."""

    state: NDArray[np.int64]
    choice: NDArray[np.int64]
    seconds: float
    peak: int
    """Base included."""


class Buffers(NamedTuple):
    """What `rollout.run` and the weighing fill."""

    seq_op: _Array
    seq_pos: _Array
    runs: _Array
    alive: _Array
    live: _Array
    gap_now: _Array
    marked: _Array
    stack: _Array
    burst: _Array
    event0: _Array
    event_next: _Array
    sweeps: SweepBuffers


def _buffers(problem: Problem, sweeps: Sweeps) -> Buffers:
    ops, storages = len(problem.op_names), len(problem.storage_names)
    length = _LONGEST * len(problem.order) + 1000
    return Buffers(
        seq_op=np.zeros(length, np.int64),
        seq_pos=np.zeros(length, np.int64),
        runs=np.zeros(length, np.bool_),
        alive=np.zeros(storages, np.bool_),
        live=np.zeros(storages, np.bool_),
        gap_now=np.zeros(storages, np.int64),
        marked=np.zeros(ops, np.bool_),
        stack=np.zeros(8 * ops + 1000, np.int64),
        burst=np.zeros(ops + 2, np.int64),
        event0=np.zeros(len(problem.order), np.int64),
        event_next=np.zeros(2 * len(problem.gaps.storage), np.int64),
        sweeps=sweep_buffers(sweeps),
    )


class Player:
    """Every method returns `Answers` that were played in full."""

    def __init__(self, problem: Problem, sweeps: Sweeps, arrays: Arrays, moves: Moves) -> None:
        self.problem, self.sweeps, self.arrays, self.moves = problem, sweeps, arrays, moves
        self.buffers = _buffers(problem, sweeps)
        self.during = np.zeros(len(problem.order), np.int64)
        """Of the last play: the most bytes at each position."""
        self.room = 2**62
        """Bytes that sweeps may choose their algorithms for."""
        self.undo = make_undo()
        self.stop = np.zeros(1, np.bool_)
        """Ends a round of annealing early."""

    def warm_up(self) -> float:
        """Compile what is not compiled yet (once per machine). Returns the seconds of a play."""
        start = self.keep_all()
        if len(self.moves.candidates):
            self.anneal(start, start, self.room, FASTEST, 1, 1.0, 0.0, 0)
        started = time.perf_counter()
        self.keep_all()
        return max(time.perf_counter() - started, 1e-7)

    def play(
        self, state: NDArray[np.int64], choice: NDArray[np.int64] | None = None
    ) -> Answers | None:
        """None where something that was dropped cannot be made again."""
        chosen = self.no_choice() if choice is None else choice
        length, seconds, peak, _ = self._evaluate(state, chosen)
        if length == FAILED:
            return None
        return Answers(state.copy(), chosen.copy(), seconds, int(peak) + self.problem.base_bytes)

    def _evaluate(
        self, state: NDArray[np.int64], choice: NDArray[np.int64]
    ) -> tuple[int, float, int, float]:
        found: tuple[int, float, int, float] = evaluate(
            self.arrays, self.sweeps, self.buffers, state, choice, self.room, np.inf, self.during
        )
        return found

    def anneal(
        self,
        start: Answers,
        best: Answers,
        limit: int,
        goal: int,
        iterations: int,
        heat: float,
        price: float,
        seed: int,
    ) -> tuple[Answers, float]:
        """One round from `start`: (the best of it, or `best`; the price at its end)."""
        base = self.problem.base_bytes
        state, choice = best.state.copy(), best.choice.copy()
        record = np.array([best.seconds, best.peak - base], np.float64)
        price, _ = anneal(
            self.arrays, self.sweeps, self.buffers, self.moves, self.undo, start.state.copy(), start.choice.copy(), state, choice,
            record, limit - base, goal, iterations, heat, heat * 1e-2, price, seed, self.stop,
        )  # fmt: skip
        return Answers(state, choice, float(record[0]), int(record[1]) + base), price

    def keep_all(self) -> Answers:
        answers = self.play(self.problem.gaps.start_state)
        assert answers is not None
        return answers

    def no_choice(self) -> NDArray[np.int64]:
        return np.zeros(len(self.problem.storage_names) + len(self.problem.seconds), np.int64)

    def lean_choice(self) -> NDArray[np.int64]:
        """Every op in the way that needs the least memory at once."""
        problem, choice = self.problem, self.no_choice()
        for op in np.flatnonzero(np.diff(problem.ways.start) > 1).tolist():
            needs = [max(map(self._needs, problem.parts[w].tolist())) for w in problem.ways[op]]
            choice[len(problem.storage_names) + op] = int(np.argmin(needs))
        return choice

    def quick_choice(self) -> NDArray[np.int64]:
        """Every op in the fastest way that makes nothing else; and in one that leaves something unread, where that spares others more than it costs."""
        problem, choice = self.problem, self.no_choice()
        leaving: list[tuple[int, int]] = []
        for op in np.flatnonzero(np.diff(problem.ways.start) > 1).tolist():
            ways = [problem.parts[way].tolist() for way in problem.ways[op]]
            place = len(problem.storage_names) + op
            own, read = set(problem.makes[op].tolist()), set(problem.reads[op].tolist())
            plain = [own.issuperset(_all(problem.makes, parts)) for parts in ways]
            seconds = [problem.seconds[p].sum() if ok else np.inf for p, ok in zip(ways, plain)]
            choice[place] = int(np.argmin(seconds))
            leaving += [(place, k) for k, p in enumerate(ways) if plain[k] and not read.issubset(_all(problem.reads, p))]  # fmt: skip
        best = self.play(problem.gaps.start_state, choice)
        for place, way in leaving:
            before, choice[place] = choice[place], way
            found = self.play(problem.gaps.start_state, choice)
            if best is None or found is None or found.seconds >= best.seconds:
                choice[place] = before
            else:
                best = found
        return choice

    def _needs(self, op: int) -> int:
        """Bytes in use while an op runs alone."""
        problem = self.problem
        own = np.concatenate([problem.reads[op], problem.makes[op]])
        return int(problem.bytes[own].sum() + problem.workspace[op])

    def like(self, timeline: Timeline) -> Answers | None:
        """Answers that keep between segments what another program keeps, and remake the rest just in time."""
        gaps, segment = self.problem.gaps, self.problem.segment
        state = gaps.start_state.copy()
        state[gaps.open & (gaps.end == NEVER)] = DROP
        kept = [
            {self.problem.storage_index[s] for s in names if s in self.problem.storage_index}
            for names in timeline.kept
        ]
        for g in np.flatnonzero(gaps.open & (gaps.end != NEVER)).tolist():
            first, last = int(segment[gaps.start[g]]), int(segment[gaps.end[g]])
            if any(gaps.storage[g] not in kept[border] for border in range(first, last)):
                state[g] = DROP
        return self.play(state)

    def program(self, answers: Answers) -> Program:
        length, *_ = self._evaluate(answers.state, answers.choice)
        runs = self.buffers.runs[:length]
        positions, ops = self.buffers.seq_pos[:length], self.buffers.seq_op[:length]
        return self.problem.program(positions[runs], ops[runs])


def _all(lists: Lists, ops: list[int]) -> set[int]:
    return {s for op in ops for s in lists[op].tolist()}
