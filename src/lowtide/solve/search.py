"""How are good answers found? A greedy start, then rounds of annealing until the effort is spent.

Goes in: a `Problem` and a limit in bytes. Comes out: the best answers found. Rounds of annealing (`solve/anneal.py`) start
from the best so far, each from hot to cold, on as many threads as there are cores; after each round the threads share what
they found. The smallest peak, the *floor*, is sought the same way.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from lowtide.ir.program import Program
from lowtide.sim.memory import Timeline
from lowtide.solve.anneal import FASTEST, SMALLEST
from lowtide.solve.compiled import COMPILED
from lowtide.solve.gaps import DISCARD, DROP
from lowtide.solve.greedy import Descent
from lowtide.solve.moves import make_moves
from lowtide.solve.play import Answers, Player
from lowtide.solve.problem import Problem
from lowtide.solve.rollout import arrays
from lowtide.solve.sweeps import NO_SWEEPS, Sweeps

__all__ = ["Effort", "Pace", "Search"]

_NOTABLE = 2e-4
"""An improvement by less is none."""
_THREADS = 4
"""More would only repeat each other."""


@dataclass(frozen=True)
class Effort:
    """How much may be spent: seconds, and if given plays; with plays alone, the same seed gives the same answers."""

    seconds: float = math.inf
    plays: int | None = None

    def share(self, part: float) -> Effort:
        return Effort(self.seconds * part, None if self.plays is None else int(self.plays * part))


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
    spread: float = 1.0
    """Each further thread starts so many times hotter."""


_QUICK = Pace(0.5, 20_000, (3e-4, 3e-5, 3e-3, 1e-4), 2.0)


class Search:
    """The players and moves for one problem; every method returns `Answers` that were played in full."""

    def __init__(
        self, problem: Problem, sweeps: Sweeps = NO_SWEEPS, *, threads: int | None = None
    ) -> None:
        self.problem = problem
        self.moves = make_moves(problem)
        count = min(_THREADS, os.cpu_count() or 1) if threads is None else threads
        shared = arrays(problem)
        self.players = [
            Player(problem, sweeps, shared, self.moves) for _ in range(count if COMPILED else 1)
        ]
        self.player = self.players[0]
        self.play_seconds = 0.0
        self.interrupted = False
        """Ctrl-C was pressed: every search returns the best it has."""

    def set_room(self, room: int) -> None:
        """Bytes that sweeps may choose their algorithms for."""
        for player in self.players:
            player.room = room

    def warm_up(self) -> None:
        """Compile what is not compiled yet (once per machine), and see how long a play takes."""
        Descent(self.player).warm_up()
        self.play_seconds = self.player.warm_up()

    def keep_all(self) -> Answers:
        return self.player.keep_all()

    def program(self, answers: Answers) -> Program:
        return self.player.program(answers)

    def like(self, timeline: Timeline) -> Answers | None:
        return self.player.like(timeline)

    def descend(self, limit: int, seconds: float = math.inf) -> Answers | None:
        """A quick start within the limit; None if that gets stuck or takes longer."""
        return Descent(self.player, seconds).descend(limit)

    def improve(
        self,
        start: Answers,
        limit: int,
        *,
        effort: Effort,
        seed: int = 0,
        goal: int = FASTEST,
        enough: float = 0.0,
        pace: Pace = _QUICK,
        report: Callable[[Answers], None] | None = None,
    ) -> Answers:
        """Anneal from `start` until the effort is spent, a plan takes at most `enough` seconds, or Ctrl-C."""
        if not len(self.moves.candidates):
            return start
        if self.play_seconds == 0.0:
            self.warm_up()
        rounds = _Rounds(self, start, limit, effort, seed, goal, pace)
        try:
            if report is not None:
                report(start)
            with ThreadPoolExecutor(len(self.players)) as pool:
                while rounds.go_on() and not (goal == FASTEST and rounds.best.seconds <= enough):
                    before = rounds.best
                    rounds.play_one(pool)
                    if report is not None and rounds.best is not before:
                        report(rounds.best)
        except KeyboardInterrupt:
            self.interrupted = True
        return rounds.best

    def floor(self, *, effort: Effort, seed: int = 0) -> Answers:
        """The smallest peak found."""
        problem, player = self.problem, self.player
        started = time.perf_counter()
        starts = [self.keep_all()]
        for answer in (DROP, DISCARD):
            state = problem.gaps.start_state.copy()
            state[problem.gaps.open] = answer
            played = [player.play(state), player.play(state, player.lean_choice())]
            starts += [p for p in played if p is not None]
        low, high = problem.base_bytes, min(s.peak for s in starts)
        for _ in range(6):
            middle = (low + high) // 2
            left = effort.seconds - (time.perf_counter() - started)
            if left <= 0:
                break
            found = self.descend(middle, left)
            if found is None or found.peak > middle:
                low = middle
            else:
                high = found.peak
                starts.append(found)
        best = min(starts, key=lambda s: (s.peak, s.seconds))
        rest = Effort(effort.seconds - (time.perf_counter() - started), effort.plays)
        return self.improve(best, problem.base_bytes, effort=rest, seed=seed, goal=SMALLEST)


class _Rounds:
    """Annealing, one round after the other."""

    def __init__(
        self,
        search: Search,
        start: Answers,
        limit: int,
        effort: Effort,
        seed: int,
        goal: int,
        pace: Pace,
    ) -> None:
        self.search, self.best, self.limit, self.seed = search, start, limit, seed
        self.effort, self.goal, self.pace = effort, goal, pace
        self.span = max(self.sought(start), 1e-12)
        price = start.seconds / max(search.problem.bytes.sum() * 10.0, 1.0)
        self.prices = [price] * len(search.players)
        self.began = self.improved = time.perf_counter()
        self.patience = pace.patience + search.play_seconds * len(search.moves.candidates)
        self.round = self.plays = 0

    def sought(self, answers: Answers) -> float:
        if self.goal == FASTEST:
            return answers.seconds
        return float(answers.peak - self.search.problem.base_bytes)

    def go_on(self) -> bool:
        now = time.perf_counter()
        if self.search.interrupted or now - self.began >= self.effort.seconds:
            return False
        if self.effort.plays is not None:
            return self.plays < self.effort.plays
        return now - self.improved <= self.patience + 0.5 * (self.improved - self.began)

    def play_one(self, pool: ThreadPoolExecutor) -> None:
        iterations = self.iterations()
        heat = self.span * self.pace.heats[self.round % len(self.pace.heats)]
        players = self.search.players
        before, started = self.best, time.perf_counter()
        jobs = [
            pool.submit(
                player.anneal,
                before,
                before,
                self.limit,
                self.goal,
                iterations,
                heat * self.pace.spread**number,
                price,
                self.seed + self.round * len(players) + number,
            )
            for number, (player, price) in enumerate(zip(players, self.prices, strict=True))
        ]
        left = self.effort.seconds - (started - self.began)
        try:
            wait(jobs, timeout=None if math.isinf(left) else left)
        except KeyboardInterrupt:
            self.search.interrupted = True
        # The time is up, or Ctrl-C: what the round has found so far counts.
        for player in players:
            player.stop[0] = True
        found = [job.result() for job in jobs]
        for player in players:
            player.stop[0] = False
        self.prices = [price for _, price in found]
        self.round += 1
        self.plays += iterations * len(players)
        self.search.play_seconds = max((time.perf_counter() - started) / iterations, 1e-7)
        best = min((answers for answers, _ in found), key=self.sought)
        if self.sought(best) < self.sought(before):
            self.best = best
            if self.sought(best) < self.sought(before) * (1 - _NOTABLE):
                self.improved = time.perf_counter()

    def iterations(self) -> int:
        """So many that a round takes as long as it should, or what is left."""
        pace, players = self.pace, len(self.search.players)
        if self.effort.plays is not None:
            return max(20, min(pace.most, (self.effort.plays - self.plays) // players))
        left = self.effort.seconds - (time.perf_counter() - self.began)
        return max(20, min(pace.most, int(min(pace.round, left) / self.search.play_seconds)))
