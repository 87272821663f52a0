"""The planner: a good start, then annealing until the time is up.

Goes in: a `Problem` and a limit in bytes. Comes out: the best program found, with the seconds no program can beat and the
smallest peak found. Two starts compete: *descend*, which drops the tensors that free the most bytes per second of
recomputation where the step is over the limit, and the best of the baselines, so that the result is never worse than any of
them. Then rounds of annealing (`solve/anneal.py`) restart from the best so far until the time limit or Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.program import Program
from lowtide.sim.memory import Timeline
from lowtide.solve.anneal import FASTEST, SMALLEST, anneal, evaluate
from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import DISCARD, DROP, HOLD, NEVER
from lowtide.solve.moves import make_moves
from lowtide.solve.problem import Problem
from lowtide.solve.rollout import FAILED, Arrays, arrays
from lowtide.solve.sweeps import NO_SWEEPS, Sweeps, sweep_buffers

__all__ = ["Answers", "Pace", "Search"]

_LONGEST = 12
"""A program may be at most this many times as long as the captured step."""
_TOO_SLOW = 2.5
"""The greedy start gives up on drops that make the step this many times slower."""
_DESCENTS = 400
_NOTABLE = 2e-4
"""An improvement by less is none."""
_BITE = 6
"""The greedy start frees this part of what is over the limit before it looks again: drops make other drops dearer."""
_SMALL = 500
"""... and leaves tensors alone that are smaller than this part of it."""


@dataclass(frozen=True)
class Pace:
    """How annealing spends its time: in rounds that start from the best so far, each from hot to cold."""

    round: float
    """Seconds."""
    most: int
    """Proposals in a round."""
    heats: tuple[float, ...]
    """Of the rounds, in turn: as parts of the step's seconds."""
    patience: float
    """It ends once so many seconds, one try of every gap, and half the time it took so far went by without a notable
    improvement."""


_QUICK = Pace(0.5, 20_000, (3e-4, 3e-5, 3e-3, 1e-4), 4.0)


@dataclass(frozen=True)
class Answers:
    """One answer for each gap, and what follows."""

    state: NDArray[np.int8]
    choice: NDArray[np.int64]
    seconds: float
    peak: int
    """Base included."""


class Search:
    """Buffers and moves for one problem; every method returns `Answers` that were played in full."""

    def __init__(self, problem: Problem, sweeps: Sweeps = NO_SWEEPS) -> None:
        self.problem, self.sweeps = problem, sweeps
        self.arrays: Arrays = arrays(problem)
        n_ops, n_storages = len(problem.op_names), len(problem.storage_names)
        length = _LONGEST * len(problem.order) + 1000
        self.buffers = (
            np.zeros(length, np.int64),
            np.zeros(length, np.int64),
            np.zeros(length, np.bool_),
            np.zeros(n_storages, np.bool_),
            np.zeros(n_storages, np.bool_),
            np.zeros(n_storages, np.int64),
            np.zeros(n_ops, np.bool_),
            np.zeros(8 * n_ops + 1000, np.int64),
            np.zeros(n_ops + 2, np.int64),
            *sweep_buffers(sweeps),
        )
        self.during = np.zeros(len(problem.order), np.int64)
        self.keep_all_seconds = problem.captured_seconds
        self.play_seconds = 0.0
        self.room = 2**62
        """Bytes that sweeps may choose their algorithms for."""
        self.interrupted = False
        """Ctrl-C was pressed: every search returns the best it has."""
        self.delayable = np.diff(problem.gaps.delays.start) > 0
        self.moves = make_moves(problem)

    def warm_up(self) -> None:
        """Compile what is not compiled yet (once per machine), and see how long a play takes."""
        start = self.keep_all()
        if self.has_choices:
            state, choice = start.state.copy(), start.choice.copy()
            anneal(
                self.arrays, self.sweeps, self.buffers, self.moves, state, choice, state.copy(), choice.copy(),
                np.zeros(2), 0, FASTEST, 1, 1.0, 1.0, 0.0, 0,
            )  # fmt: skip
        started = time.perf_counter()
        self.keep_all()
        self.play_seconds = max(time.perf_counter() - started, 1e-7)

    @property
    def has_choices(self) -> bool:
        return bool(len(self.moves.candidates))

    def play(
        self, state: NDArray[np.int8], choice: NDArray[np.int64] | None = None
    ) -> Answers | None:
        """None where something that was dropped cannot be made again."""
        chosen = self.no_choice() if choice is None else choice
        length, seconds, peak, _ = evaluate(
            self.arrays, self.sweeps, self.buffers, state, chosen, self.room, self.during
        )
        if length == FAILED:
            return None
        return Answers(state.copy(), chosen.copy(), seconds, int(peak) + self.problem.base_bytes)

    def no_choice(self) -> NDArray[np.int64]:
        return np.zeros(len(self.problem.storage_names) + len(self.problem.seconds), np.int64)

    def lean_choice(self) -> NDArray[np.int64]:
        """Every op in the way that needs the least memory at once."""
        problem, choice = self.problem, self.no_choice()
        for op in np.flatnonzero(np.diff(problem.ways.start) > 1).tolist():
            needs = [max(map(self._needs, problem.parts[w].tolist())) for w in problem.ways[op]]
            choice[len(problem.storage_names) + op] = int(np.argmin(needs))
        return choice

    def _needs(self, op: int) -> int:
        """Bytes in use while an op runs alone."""
        problem = self.problem
        own = np.concatenate([problem.reads[op], problem.makes[op]])
        return int(problem.bytes[own].sum() + problem.workspace[op])

    def program(self, answers: Answers) -> Program:
        length, *_ = evaluate(
            self.arrays,
            self.sweeps,
            self.buffers,
            answers.state,
            answers.choice,
            self.room,
            self.during,
        )
        ops, positions, runs = (
            self.buffers[0][:length],
            self.buffers[1][:length],
            self.buffers[2][:length],
        )
        return self.problem.program(positions[runs], ops[runs])

    def keep_all(self) -> Answers:
        answers = self.play(self.problem.gaps.start_state)
        assert answers is not None
        return answers

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

    def descend(self, limit: int) -> Answers | None:
        """Drop where it hurts least until the limit holds; None if that gets stuck. Two ways: what is remade only to remake
        others is discarded at once, or held for whoever needs it next. Where both get stuck, with ops in their leanest ways."""
        for choice in (self.no_choice(), self.lean_choice()):
            found = [self._descend(limit, choice, answer) for answer in (DISCARD, DROP)]
            within = [f for f in found if f is not None]
            if within:
                return min(within, key=lambda f: f.seconds)
        return None

    def _descend(self, limit: int, choice: NDArray[np.int64], last: int) -> Answers | None:
        problem = self.problem
        state = problem.gaps.start_state.copy()
        state[problem.gaps.open & (problem.gaps.end == NEVER)] = last
        room = limit - problem.base_bytes
        movable = problem.gaps.open & (problem.gaps.end != NEVER)
        reach = np.minimum(problem.gaps.end, len(problem.order))
        before = state.copy()
        for _ in range(_DESCENTS):
            answers = self.play(state, choice)
            if answers is None or answers.seconds > _TOO_SLOW * self.keep_all_seconds:
                # A chain grew too long: undo the last drops and do not try them again.
                movable[state != before] = False
                state[:] = before
                continue
            over = self.during - room
            if over.max() <= 0:
                return answers
            before[:] = state
            if not self._drop_some(state, over, movable, reach):
                return None
        return None

    def _drop_some(
        self,
        state: NDArray[np.int8],
        over: NDArray[np.int64],
        movable: NDArray[np.bool_],
        reach: NDArray[np.int64],
    ) -> bool:
        """Drop gaps across the worst position: best relief per second first, a bite of what is over there. Where nothing is
        held any more, do not hold what is remade on the way either."""
        problem = self.problem
        worst = int(over.argmax())
        size = problem.bytes[problem.gaps.storage]
        least = max(1, int(over[worst]) // _SMALL)
        across = movable & (problem.gaps.start < worst) & (reach > worst) & (size > 0)
        if self._delay_some(state, over, np.flatnonzero(across & (state == HOLD) & self.delayable)):
            return True
        across &= ~self.delayable
        for now, then in ((HOLD, DROP), (DROP, DISCARD)):
            for smallest in (least, 1):
                found = np.flatnonzero(across & (state == now) & (size >= smallest))
                if len(found):
                    self._drop_best(state, over, found, then, reach)
                    return True
        return False

    def _delay_some(
        self, state: NDArray[np.int8], over: NDArray[np.int64], found: NDArray[np.int64]
    ) -> bool:
        """Make finished gradients at the end instead, where what they are made from is smaller."""
        problem = self.problem
        size = problem.bytes[problem.gaps.storage]
        saved = 0
        for gap in sorted(found.tolist(), key=lambda g: -size[g]):
            makings = problem.gaps.delays[gap]
            more = makings[state[makings] != HOLD]
            if size[gap] > size[more].sum():
                state[gap] = DROP
                state[makings] = HOLD
                saved += int(size[gap] - size[more].sum())
                if saved >= int(over.max()) // _BITE:
                    break
        return saved > 0

    def _drop_best(
        self,
        state: NDArray[np.int8],
        over: NDArray[np.int64],
        found: NDArray[np.int64],
        answer: int,
        reach: NDArray[np.int64],
    ) -> None:
        problem = self.problem
        size = problem.bytes[problem.gaps.storage]
        tight = np.concatenate([[0], np.cumsum(over > 0)])
        relief = size[found] * (tight[reach[found]] - tight[problem.gaps.start[found] + 1])
        cost = _remake_seconds(self.arrays, state, problem.gaps.storage, reach)
        score = relief / (cost[problem.gaps.storage[found]] + 1e-7)
        freed = 0
        for gap in found[np.argsort(-score, kind="stable")]:
            state[gap] = answer
            freed += int(size[gap])
            if freed >= max(int(over.max()) // _BITE, 1):
                break

    def improve(
        self,
        start: Answers,
        limit: int,
        *,
        until: float,
        seed: int = 0,
        goal: int = FASTEST,
        enough: float = 0.0,
        pace: Pace = _QUICK,
        report: Callable[[Answers], None] | None = None,
    ) -> Answers:
        """Anneal from `start` until the clock says `until` (time.perf_counter), a plan takes at most `enough` seconds, or Ctrl-C."""
        if not self.has_choices:
            return start
        room = limit - self.problem.base_bytes
        best, best_choice = start.state.copy(), start.choice.copy()
        record = np.array([start.seconds, start.peak - self.problem.base_bytes], np.float64)
        price = start.seconds / max(self.problem.bytes.sum() * 10.0, 1.0)
        span = max(start.seconds if goal == FASTEST else float(record[1]), 1e-12)
        patience = pace.patience + self.play_seconds * len(self.moves.candidates)
        round_ = 0
        began = improved = time.perf_counter()
        try:
            if report is not None:
                report(start)
            while (now := time.perf_counter()) < until and not self.interrupted:
                if goal == FASTEST and record[0] <= enough:
                    break
                if now - improved > patience + 0.5 * (improved - began):
                    break
                state, choice = best.copy(), best_choice.copy()
                before = record.copy()
                heat = pace.heats[round_ % len(pace.heats)]
                price, _ = anneal(
                    self.arrays, self.sweeps, self.buffers, self.moves, state, choice, best, best_choice, record,
                    room, goal, self._iterations(until, pace), span * heat, span * heat * 1e-2, price, seed + round_,
                )  # fmt: skip
                round_ += 1
                if record[goal] < before[goal] * (1 - _NOTABLE):
                    improved = time.perf_counter()
                if report is not None and (record != before).any():
                    report(self._answers(best, best_choice, record))
        except KeyboardInterrupt:
            self.interrupted = True
        return self._answers(best, best_choice, record)

    def _answers(
        self, state: NDArray[np.int8], choice: NDArray[np.int64], record: NDArray[np.float64]
    ) -> Answers:
        return Answers(
            state.copy(), choice.copy(), float(record[0]), int(record[1]) + self.problem.base_bytes
        )

    def _iterations(self, until: float, pace: Pace) -> int:
        """So many that a round takes as long as it should, or what is left."""
        if self.play_seconds == 0.0:
            self.warm_up()
        left = min(pace.round, until - time.perf_counter())
        return max(20, min(pace.most, int(left / self.play_seconds)))

    def floor(self, *, until: float, seed: int = 0) -> Answers:
        """The smallest peak found."""
        problem = self.problem
        starts = [self.keep_all()]
        for answer in (DROP, DISCARD):
            state = problem.gaps.start_state.copy()
            state[problem.gaps.open] = answer
            played = [self.play(state), self.play(state, self.lean_choice())]
            starts += [p for p in played if p is not None]
        low, high = problem.base_bytes, min(s.peak for s in starts)
        for _ in range(6):
            middle = (low + high) // 2
            found = self.descend(middle)
            if found is None or found.peak > middle:
                low = middle
            else:
                high = found.peak
                starts.append(found)
            if time.perf_counter() > until:
                break
        best = min(starts, key=lambda s: (s.peak, s.seconds))
        return self.improve(best, problem.base_bytes, until=until, seed=seed, goal=SMALLEST)


@compiled
def _remake_seconds(a, state, gap_storage, reach):  # type: ignore[no-untyped-def]
    """A guess, per storage, of the seconds to make it again given what is held to the end; shared work is counted twice."""
    last = a.order.shape[0]
    held = np.zeros(a.bytes.shape[0], np.bool_)
    for g in range(gap_storage.shape[0]):
        if state[g] == HOLD and reach[g] > last // 2:
            held[gap_storage[g]] = True
    cost = np.zeros(a.bytes.shape[0], np.float64)
    for op in range(a.seconds.shape[0]):
        needed = a.seconds[op]
        for i in range(a.reads0[op], a.reads0[op + 1]):
            if not held[a.reads[i]]:
                needed += cost[a.reads[i]]
        for i in range(a.makes0[op], a.makes0[op + 1]):
            s = a.makes[i]
            if cost[s] == 0.0 or needed < cost[s]:
                cost[s] = needed
    return cost
