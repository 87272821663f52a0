"""Which tensors to drop, to begin with? Greedy: what frees the most bytes per second of recomputation where the step is over the limit.

Each look drops a bite of what is over at the worst position, because drops make other drops dearer. The result is a start for
`solve/search.py`, good within a few percent on networks that are chains of blocks.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import DISCARD, DROP, HOLD, NEVER
from lowtide.solve.play import Answers, Player

__all__ = ["Descent"]

_TOO_SLOW = 2.5
"""Give up on drops that make the step this many times slower."""
_LOOKS = 400
_BITE = 6
"""Free this part of what is over the limit before looking again."""
_SMALL = 500
"""Leave tensors alone that are smaller than this part of it."""


class Descent:
    def __init__(self, player: Player, seconds: float = math.inf) -> None:
        self.player = player
        self.until = time.perf_counter() + seconds
        gaps = player.problem.gaps
        self.delayable = np.diff(gaps.delays.start) > 0
        self.reach = np.minimum(gaps.end, len(player.problem.order))

    def warm_up(self) -> None:
        """Compile what is not compiled yet."""
        self._remakes(self.player.problem.gaps.start_state)

    def descend(self, limit: int) -> Answers | None:
        """Drop where it hurts least until the limit holds; None if that gets stuck. Two ways: what is remade only to remake
        others is discarded at once, or held for whoever needs it next. With ops in their fastest ways, and where both get stuck as captured, or in
        their leanest ways."""
        player = self.player
        for make in (player.quick_choice, player.no_choice, player.lean_choice):
            choice = make()
            found = [self._descend(limit, choice, self._held(answer)) for answer in (DISCARD, DROP)]
            within = [f for f in found if f is not None]
            if within:
                return min(within, key=lambda f: f.seconds)
        return None

    def go_on(self, start: Answers, limit: int) -> Answers | None:
        """The same from answers that are good for more memory."""
        return self._descend(limit, start.choice.copy(), start.state.copy())

    def _held(self, last: int) -> NDArray[np.int64]:
        """Everything held; what nobody reads any more is remade in this way."""
        gaps = self.player.problem.gaps
        state = gaps.start_state.copy()
        state[gaps.open & (gaps.end == NEVER)] = last
        return state

    def _descend(
        self, limit: int, choice: NDArray[np.int64], state: NDArray[np.int64]
    ) -> Answers | None:
        problem = self.player.problem
        room = limit - problem.base_bytes
        movable = problem.gaps.open & (problem.gaps.end != NEVER)
        before = state.copy()
        for _ in range(_LOOKS):
            if time.perf_counter() > self.until:
                return None
            answers = self.player.play(state, choice)
            if answers is None or answers.seconds > _TOO_SLOW * problem.captured_seconds:
                # A chain grew too long: undo the last drops and do not try them again.
                movable[state != before] = False
                state[:] = before
                continue
            over = self.player.during - room
            if over.max() <= 0:
                return answers
            before[:] = state
            if not self._drop_some(state, over, movable):
                return None
        return None

    def _drop_some(
        self,
        state: NDArray[np.int64],
        over: NDArray[np.int64],
        movable: NDArray[np.bool_],
    ) -> bool:
        """Drop gaps across the worst position: best relief per second first, a bite of what is over there. Where nothing is
        held any more, do not hold what is remade on the way either."""
        problem = self.player.problem
        worst = int(over.argmax())
        size = problem.bytes[problem.gaps.storage]
        least = max(1, int(over[worst]) // _SMALL)
        across = movable & (problem.gaps.start < worst) & (self.reach > worst) & (size > 0)
        if self._delay_some(state, over, np.flatnonzero(across & (state == HOLD) & self.delayable)):
            return True
        across &= ~self.delayable
        for now, then in ((HOLD, DROP), (DROP, DISCARD)):
            for smallest in (least, 1):
                found = np.flatnonzero(across & (state == now) & (size >= smallest))
                if len(found):
                    self._drop_best(state, over, found, then)
                    return True
        return False

    def _delay_some(
        self, state: NDArray[np.int64], over: NDArray[np.int64], found: NDArray[np.int64]
    ) -> bool:
        """Make finished gradients at the end instead, where what they are made from is smaller."""
        problem = self.player.problem
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
        state: NDArray[np.int64],
        over: NDArray[np.int64],
        found: NDArray[np.int64],
        answer: int,
    ) -> None:
        problem = self.player.problem
        size = problem.bytes[problem.gaps.storage]
        tight = np.concatenate([[0], np.cumsum(over > 0)])
        relief = size[found] * (tight[self.reach[found]] - tight[problem.gaps.start[found] + 1])
        score = relief / (self._remakes(state)[problem.gaps.storage[found]] + 1e-7)
        freed = 0
        for gap in found[np.argsort(-score, kind="stable")]:
            state[gap] = answer
            freed += int(size[gap])
            if freed >= max(int(over.max()) // _BITE, 1):
                break

    def _remakes(self, state: NDArray[np.int64]) -> NDArray[np.float64]:
        storages = self.player.problem.gaps.storage
        cost: NDArray[np.float64] = _remake_seconds(self.player.arrays, state, storages, self.reach)
        return cost


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
