"""Which answers make the step fast within the limit? Simulated annealing over the gaps, compiled.

One state is one answer per gap (and, for storages with several makers and ops with several ways, which of them). Moves are in
`solve/neighbours.py`. Every proposal is played and weighed in full, which takes tens of microseconds on a thousand ops, so
nothing is estimated.

Going over the limit costs `price` seconds per byte and position over it; the price rises while the search is over the limit
and falls while it is under, so that it walks along the border, where the good plans are.
"""

from __future__ import annotations

import numpy as np

from lowtide.solve.compiled import compiled
from lowtide.solve.neighbours import propose, take_back
from lowtide.solve.rollout import FAILED, run, weigh
from lowtide.solve.sweeps import weigh_sweeps

__all__ = ["FASTEST", "SMALLEST", "anneal", "evaluate"]

FASTEST, SMALLEST = 0, 1
"""What is sought: the least time within the limit, or the least peak."""


@compiled
def evaluate(a, m, buffers, state, choice, limit, price, during):  # type: ignore[no-untyped-def]
    """(length, seconds, peak, bytes over the limit summed over positions); length FAILED if it cannot be played."""
    length = run(a, state, choice, buffers)
    if length == FAILED:
        return FAILED, np.inf, 0, 0.0
    if m.sweep.shape[0] > 0:
        seconds, peak = weigh_sweeps(a, m, buffers, length, during, limit, price)
    else:
        seconds, peak = weigh(a, buffers, length, during)
    over = 0.0
    for position in range(during.shape[0]):
        if during[position] > limit:
            over += during[position] - limit
    return length, seconds, peak, over


@compiled
def anneal(  # type: ignore[no-untyped-def]
    a,
    m,
    buffers,
    moves,
    undo,
    state,
    choice,
    best,
    best_choice,
    record,
    limit,
    goal,
    iterations,
    hot,
    cold,
    price,
    seed,
    stop,
):
    """Improve `state` in place, keep the best within the limit in `best`; end early once `stop[0]` is set.

    `record` holds (best seconds, best peak) on entry and exit; `goal` FASTEST or SMALLEST. Returns (price, accepted)."""
    during = np.zeros(a.order.shape[0], np.int64)
    np.random.seed(seed)
    worth = price if goal == FASTEST else np.inf
    _, seconds, peak, over = evaluate(a, m, buffers, state, choice, limit, worth, during)
    now = seconds + price * over if goal == FASTEST else float(peak) + seconds * 1e-6
    accepted = 0
    inside = 0
    for step in range(iterations):
        if stop[0]:
            break
        temperature = hot * (cold / hot) ** (step / iterations)
        propose(a, state, choice, moves, undo)
        if undo.counts[0] == 0 and undo.counts[1] == 0:
            continue
        length, seconds, peak, over = evaluate(a, m, buffers, state, choice, limit, worth, during)
        then = seconds + price * over if goal == FASTEST else float(peak) + seconds * 1e-6
        take = length != FAILED and (
            then <= now or np.random.random() < np.exp((now - then) / temperature)
        )
        if take:
            now = then
            accepted += 1
            if over > 0.0 and m.sweep.shape[0] > 0 and seconds < record[0]:
                # With algorithms that fit the limit the same answers may still be the best.
                _, seconds, peak, _ = evaluate(a, m, buffers, state, choice, limit, np.inf, during)
            better = (
                (peak <= limit and seconds < record[0]) if goal == FASTEST else peak < record[1]
            )
            if better:
                record[0], record[1] = seconds, peak
                best[:] = state
                best_choice[:] = choice
        else:
            take_back(state, choice, undo)
        if goal == FASTEST:
            if take:
                inside += 1 if over <= 0.0 else -1
            if step % 100 == 99:
                change = 0.93 if inside > 0 else 1.08
                inside = 0
                price *= change
                worth = price
                _, seconds, peak, over = evaluate(
                    a, m, buffers, state, choice, limit, worth, during
                )
                now = seconds + price * over
    return price, accepted
