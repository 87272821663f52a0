"""Which answers make the step fast within the limit? Simulated annealing over the gaps, compiled.

One state is one answer per gap (and, for storages with several makers, which maker comes first). A proposal changes one
gap, swaps a held one with a dropped one, sets a run of neighbouring gaps alike (a stretch of layers), or copies the answers of
one block onto another of the same shape: networks repeat, and what is good for one layer is good for its twins. Every
proposal is played and weighed in full, which takes tens of microseconds on a thousand ops, so nothing is estimated.

Going over the limit costs `price` seconds per byte and position over it; the price rises while the search is over the limit
and falls while it is under, so that it walks along the border, where the good plans are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import DISCARD, DROP, HOLD, NEVER
from lowtide.solve.rollout import FAILED, run, weigh
from lowtide.solve.sweeps import weigh_sweeps

__all__ = ["FASTEST", "SMALLEST", "Moves", "anneal", "evaluate"]

FASTEST, SMALLEST = 0, 1
"""What is sought: the least time within the limit, or the least peak."""
_LONGEST_RUN = 48


class Moves(NamedTuple):
    """What annealing may touch."""

    candidates: NDArray[Any]
    """Open gaps, in order."""
    cumulative: NDArray[Any]
    """How likely each is picked, summed up."""
    gap_end: NDArray[Any]
    twin: NDArray[Any]
    """For each gap the next one of the same shape, in a ring."""
    shape: NDArray[Any]
    choosing: float
    """How often a choice is changed."""
    options: NDArray[Any]
    """Places in `choice` with several options: makers of a storage, ways to run an op."""
    delays0: NDArray[Any]
    delays: NDArray[Any]
    delayable: NDArray[Any]
    """Waits of finished gradients that may be made at the end."""
    storage: NDArray[Any]
    """Of each gap."""
    waits0: NDArray[Any]
    waits: NDArray[Any]
    """For each storage its open gaps, the last one left out."""
    arriving0: NDArray[Any]
    arriving: NDArray[Any]
    """For each op the open gaps that end where it runs."""


@compiled
def evaluate(a, m, buffers, state, choice, limit, during):  # type: ignore[no-untyped-def]
    """(length, seconds, peak, bytes over the limit summed over positions); length FAILED if it cannot be played."""
    seq_op, seq_pos, runs, alive, live, gap_now, marked, stack, burst = buffers[:9]
    length = run(a, state, choice, seq_op, seq_pos, alive, gap_now, marked, stack, burst)
    if length == FAILED:
        return FAILED, np.inf, 0, 0.0
    if m.sweep.shape[0] > 0:
        kept, computed, needed, chosen, kept_bytes, counts = buffers[9:]
        seconds, peak = weigh_sweeps(
            a,
            m,
            seq_op,
            seq_pos,
            length,
            live,
            runs,
            during,
            limit,
            kept,
            computed,
            needed,
            chosen,
            kept_bytes,
            counts,
        )
    else:
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
def _set(state, gap, answer, gaps, olds, count):  # type: ignore[no-untyped-def]
    """Change one answer and note the old one. Returns the new count of changes."""
    if state[gap] == answer or count >= gaps.shape[0]:
        return count
    gaps[count], olds[count] = gap, state[gap]
    state[gap] = answer
    return count + 1


@compiled
def _delay(state, moves, gaps, olds):  # type: ignore[no-untyped-def]
    """Make a finished gradient at the end, holding what it is made from; or make it at once again."""
    gap = moves.delayable[np.random.randint(moves.delayable.shape[0])]
    delay = state[gap] == HOLD
    count = _set(state, gap, np.int8(DROP) if delay else np.int8(HOLD), gaps, olds, 0)
    for i in range(moves.delays0[gap], moves.delays0[gap + 1]):
        making = moves.delays[i]
        count = _set(state, making, np.int8(HOLD) if delay else np.int8(DISCARD), gaps, olds, count)
    return count


@compiled
def _choose(a, state, choice, moves, gaps, olds, chosen):  # type: ignore[no-untyped-def]
    """Another maker for a storage, or another way to run an op; then often hold what that reads and drop what it does not."""
    place = moves.options[np.random.randint(moves.options.shape[0])]
    chosen[0] = choice[place]
    op = place - a.bytes.shape[0]
    if op >= 0:
        options = a.ways0[op + 1] - a.ways0[op]
    else:
        options = a.makers0[place + 1] - a.makers0[place]
    choice[place] += 1 + np.random.randint(options - 1)
    count = 0
    if op >= 0 and np.random.random() < 0.7:
        way = a.ways[a.ways0[op] + choice[place] % (a.ways0[op + 1] - a.ways0[op])]
        for g in range(moves.arriving0[op], moves.arriving0[op + 1]):
            gap = moves.arriving[g]
            answer = np.int8(DROP)
            for k in range(a.parts0[way], a.parts0[way + 1]):
                part = a.parts[k]
                for i in range(a.reads0[part], a.reads0[part + 1]):
                    if a.reads[i] == moves.storage[gap]:
                        answer = np.int8(HOLD)
            count = _set(state, gap, answer, gaps, olds, count)
    return count, place


@compiled
def _propose(a, state, choice, moves, gaps, olds, chosen):  # type: ignore[no-untyped-def]
    """Change `state` (or `choice`) in place; note the old answers. Returns (changed gaps, changed storage or -1)."""
    kind = np.random.random()
    if kind < 0.05 and moves.delayable.shape[0] > 0:
        return _delay(state, moves, gaps, olds), -1
    if kind < 0.05 + moves.choosing and moves.options.shape[0] > 0:
        return _choose(a, state, choice, moves, gaps, olds, chosen)
    first = moves.candidates[_pick(moves.cumulative)]
    if kind < 0.40:
        return _set(state, first, _another(state[first]), gaps, olds, 0), -1
    if kind < 0.48:
        return _everywhere(state, moves.storage[first], moves, gaps, olds), -1
    if kind < 0.72:
        return _swap(state, first, moves, gaps, olds), -1
    if kind < 0.85:
        return _stretch(state, first, moves, gaps, olds), -1
    return _copy_block(state, first, moves, gaps, olds), -1


@compiled
def _swap(state, first, moves, gaps, olds):  # type: ignore[no-untyped-def]
    """Hold this one and drop another, or the reverse."""
    was_held = state[first] == HOLD
    count = 0
    for _ in range(12):
        other = moves.candidates[_pick(moves.cumulative)]
        if other != first and (state[other] == HOLD) != was_held:
            count = _set(state, other, np.int8(HOLD) if was_held else np.int8(DROP), gaps, olds, 0)
            break
    return _set(state, first, np.int8(DROP) if was_held else np.int8(HOLD), gaps, olds, count)


@compiled
def _everywhere(state, storage, moves, gaps, olds):  # type: ignore[no-untyped-def]
    """Give all waits of a storage one answer."""
    answer = np.int8(np.random.randint(3))
    count = 0
    for i in range(moves.waits0[storage], moves.waits0[storage + 1]):
        count = _set(state, moves.waits[i], answer, gaps, olds, count)
    return count


@compiled
def _stretch(state, first, moves, gaps, olds):  # type: ignore[no-untyped-def]
    """Give a run of neighbouring gaps one answer."""
    place = np.searchsorted(moves.candidates, first)
    length = 2 + np.random.randint(_LONGEST_RUN - 2)
    answer = np.int8(np.random.randint(3))
    last_too = np.random.random() < 0.3
    count = 0
    for i in range(place, min(place + length, moves.candidates.shape[0])):
        g = moves.candidates[i]
        if moves.gap_end[g] != NEVER or last_too:
            count = _set(state, g, answer, gaps, olds, count)
    return count


@compiled
def _copy_block(state, first, moves, gaps, olds):  # type: ignore[no-untyped-def]
    """Give the gaps after a twin of this one the answers of the gaps after this one, as far as they look alike."""
    other = moves.twin[first]
    for _ in range(np.random.randint(4)):
        other = moves.twin[other]
    if other == first:
        return _set(state, first, _another(state[first]), gaps, olds, 0)
    count = 0
    for i in range(1 + np.random.randint(4 * _LONGEST_RUN)):
        if max(first, other) + i >= moves.shape.shape[0]:
            break
        if moves.shape[first + i] != moves.shape[other + i]:
            break
        if moves.shape[first + i] >= 0:
            count = _set(state, other + i, state[first + i], gaps, olds, count)
    return count


@compiled
def anneal(  # type: ignore[no-untyped-def]
    a,
    m,
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
    during = np.zeros(a.order.shape[0], np.int64)
    gaps = np.zeros(8 * _LONGEST_RUN, np.int64)
    olds = np.zeros(8 * _LONGEST_RUN, np.int8)
    chosen = np.zeros(1, np.int64)
    np.random.seed(seed)
    _, seconds, peak, over = evaluate(a, m, buffers, state, choice, limit, during)
    now = seconds + price * over if goal == FASTEST else float(peak) + seconds * 1e-6
    accepted = 0
    inside = 0
    for step in range(iterations):
        temperature = hot * (cold / hot) ** (step / iterations)
        count, storage = _propose(a, state, choice, moves, gaps, olds, chosen)
        if count == 0 and storage < 0:
            continue
        length, seconds, peak, over = evaluate(a, m, buffers, state, choice, limit, during)
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
                _, seconds, peak, over = evaluate(a, m, buffers, state, choice, limit, during)
                price *= change
                now = seconds + price * over
    return price, accepted
