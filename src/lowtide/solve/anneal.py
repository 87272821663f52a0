"""Which answers make the step fast within the limit? Simulated annealing over the gaps, compiled.

One state is one answer per gap (and, for storages with several makers, which maker comes first). A proposal changes one
gap, swaps a held one with a dropped one, sets a run of neighbouring gaps alike (a stretch of layers), or copies the answers of
one block onto another of the same shape: networks repeat, and what is good for one layer is good for its twins. Every
proposal is played and weighed in full, which takes tens of microseconds on a thousand ops, so nothing is estimated.

Going over the limit costs `price` seconds per byte and position over it; the price rises while the search is over the limit
and falls while it is under, so that it walks along the border, where the good plans are.
"""

from __future__ import annotations

import numpy as np

from lowtide.solve.compiled import compiled
from lowtide.solve.problem import DROP, HOLD, NEVER
from lowtide.solve.rollout import FAILED, run, weigh

__all__ = ["FASTEST", "SMALLEST", "anneal", "evaluate"]

FASTEST, SMALLEST = 0, 1
"""What is sought: the least time within the limit, or the least peak."""
_LONGEST_RUN = 48


@compiled
def evaluate(a, buffers, state, choice, limit, during):  # type: ignore[no-untyped-def]
    """(length, seconds, peak, bytes over the limit summed over positions); length FAILED if it cannot be played."""
    seq_op, seq_pos, runs, alive, live, gap_now, marked, stack, burst = buffers
    length = run(a, state, choice, seq_op, seq_pos, alive, gap_now, marked, stack, burst)
    if length == FAILED:
        return FAILED, np.inf, 0, 0.0
    seconds, peak = weigh(a, seq_op, seq_pos, length, live, runs, during)
    over = 0.0
    for position in range(during.shape[0]):
        if during[position] > limit:
            over += during[position] - limit
    return length, seconds, peak, over


@compiled
def _pick(cumulative):  # type: ignore[no-untyped-def]
    return np.searchsorted(cumulative, np.random.random() * cumulative[-1], side="right")


@compiled
def _another(now):  # type: ignore[no-untyped-def]
    """One of the other two answers."""
    return (now + 1 + np.random.randint(2)) % 3


@compiled
def _propose(  # type: ignore[no-untyped-def]
    state, choice, options, candidates, cumulative, gap_end, twin, shape, gaps, olds, chosen
):
    """Change `state` (or `choice`) in place; note the old answers. Returns (changed gaps, changed storage or -1)."""
    count = 0
    kind = np.random.random()
    first = candidates[_pick(cumulative)]
    if kind < 0.40:
        gaps[0], olds[0] = first, state[first]
        state[first] = _another(state[first])
        return 1, -1
    if kind < 0.70:
        want = np.int8(HOLD) if state[first] != HOLD else np.int8(DROP)
        gaps[0], olds[0] = first, state[first]
        count = 1
        for _ in range(12):
            other = candidates[_pick(cumulative)]
            if other != first and (state[other] == HOLD) != (state[first] == HOLD):
                gaps[1], olds[1] = other, state[other]
                state[other] = np.int8(DROP) if want == HOLD else np.int8(HOLD)
                count = 2
                break
        state[first] = want
        return count, -1
    if kind < 0.82 or (options.shape[0] == 0 and kind < 0.85):
        place = np.searchsorted(candidates, first)
        length = 2 + np.random.randint(_LONGEST_RUN - 2)
        answer = np.int8(np.random.randint(3))
        last_too = np.random.random() < 0.3
        for i in range(place, min(place + length, candidates.shape[0])):
            g = candidates[i]
            if gap_end[g] == NEVER and not last_too:
                continue
            if state[g] != answer:
                gaps[count], olds[count] = g, state[g]
                state[g] = answer
                count += 1
        return count, -1
    if kind < 0.97 or options.shape[0] == 0:
        other = twin[first]
        hops = np.random.randint(4)
        for _ in range(hops):
            other = twin[other]
        if other == first:
            gaps[0], olds[0] = first, state[first]
            state[first] = _another(state[first])
            return 1, -1
        length = 1 + np.random.randint(4 * _LONGEST_RUN)
        for i in range(length):
            if first + i >= shape.shape[0] or other + i >= shape.shape[0]:
                break
            if shape[first + i] != shape[other + i] or count >= gaps.shape[0]:
                break
            if shape[first + i] >= 0 and state[other + i] != state[first + i]:
                gaps[count], olds[count] = other + i, state[other + i]
                state[other + i] = state[first + i]
                count += 1
        return count, -1
    storage = options[np.random.randint(options.shape[0])]
    chosen[0] = choice[storage]
    choice[storage] += 1
    return 0, storage


@compiled
def anneal(  # type: ignore[no-untyped-def]
    a,
    buffers,
    moves,
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
):
    """Improve `state` in place, keep the best within the limit in `best`.

    `record` holds (best seconds, best peak) on entry and exit; `goal` FASTEST or SMALLEST. Returns (price, accepted)."""
    candidates, cumulative, gap_end, twin, shape, options = moves
    during = np.zeros(a[11].shape[0], np.int64)
    gaps = np.zeros(8 * _LONGEST_RUN, np.int64)
    olds = np.zeros(8 * _LONGEST_RUN, np.int8)
    chosen = np.zeros(1, np.int64)
    np.random.seed(seed)
    _, seconds, peak, over = evaluate(a, buffers, state, choice, limit, during)
    now = seconds + price * over if goal == FASTEST else float(peak) + seconds * 1e-6
    accepted = 0
    inside = 0
    for step in range(iterations):
        temperature = hot * (cold / hot) ** (step / iterations)
        count, storage = _propose(
            state, choice, options, candidates, cumulative, gap_end, twin, shape, gaps, olds, chosen
        )
        if count == 0 and storage < 0:
            continue
        length, seconds, peak, over = evaluate(a, buffers, state, choice, limit, during)
        then = seconds + price * over if goal == FASTEST else float(peak) + seconds * 1e-6
        take = length != FAILED and (
            then <= now or np.random.random() < np.exp((now - then) / temperature)
        )
        if take:
            now = then
            accepted += 1
            better = (
                (peak <= limit and seconds < record[0]) if goal == FASTEST else peak < record[1]
            )
            if better:
                record[0], record[1] = seconds, peak
                best[:] = state
                best_choice[:] = choice
        else:
            for i in range(count - 1, -1, -1):
                state[gaps[i]] = olds[i]
            if storage >= 0:
                choice[storage] = chosen[0]
        if goal == FASTEST:
            if take:
                inside += 1 if peak <= limit else -1
            if step % 100 == 99:
                change = 0.93 if inside > 0 else 1.08
                inside = 0
                _, seconds, peak, over = evaluate(a, buffers, state, choice, limit, during)
                price *= change
                now = seconds + price * over
    return price, accepted
