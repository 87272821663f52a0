"""Which answers are worth trying next? The moves of the annealing, compiled.

A move changes one gap, swaps a held one with a dropped one, sets a run of neighbouring gaps alike (a stretch of layers), makes a
storage again earlier than it is read, runs an op another way, keeps one of several tensors that would do, or copies what one
block does onto another of the same shape: networks repeat, and what is good for one layer is good for its twins. Every move
writes what it changed into the `Undo`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.solve.compiled import compiled
from lowtide.solve.gaps import ANSWER, DISCARD, DROP, EARLY, HOLD, NEVER, UNTIL

__all__ = ["Moves", "Undo", "make_undo", "propose", "take_back"]

_LONGEST_RUN = 48
_FARTHEST = 0xFFFFFF
_Array = NDArray[Any]


class Moves(NamedTuple):
    """What annealing may touch. `x0[i]:x0[i + 1]` is the stretch of `x` that belongs to i."""

    candidates: _Array
    """Open gaps, in order."""
    cumulative: _Array
    """How likely each is picked, summed up."""
    gap_start: _Array
    gap_end: _Array
    twin: _Array
    """For each gap the next one of the same shape, in a ring."""
    shape: _Array
    choosing: float
    """How often a choice is changed."""
    options: _Array
    """Places in `choice` with several options: makers of a storage, ways to run an op."""
    delays0: _Array
    delays: _Array
    delayable: _Array
    """Waits of finished gradients that may be made at the end."""
    storage: _Array
    """Of each gap."""
    waits0: _Array
    waits: _Array
    """For each storage its open gaps, the last one left out."""
    arriving0: _Array
    arriving: _Array
    """For each op the open gaps that end where it runs."""
    children0: _Array
    children: _Array
    """For each storage what captured ops make from it and may make again."""
    serves0: _Array
    serves_op: _Array
    serves_way: _Array
    """For each storage the ops with several ways, and which of these read it."""
    backward: int
    """The first position of the last segment."""
    positions: int


class Undo(NamedTuple):
    """What a move changed: `counts` gaps and places in `choice`, and what was there."""

    gaps: _Array
    answers: _Array
    places: _Array
    chosen: _Array
    counts: _Array


def make_undo() -> Undo:
    gaps, answers, places, chosen = (np.zeros(8 * _LONGEST_RUN, np.int64) for _ in range(4))
    return Undo(gaps, answers, places, chosen, np.zeros(2, np.int64))


@compiled
def take_back(state, choice, undo):  # type: ignore[no-untyped-def]
    for i in range(undo.counts[0] - 1, -1, -1):
        state[undo.gaps[i]] = undo.answers[i]
    for i in range(undo.counts[1] - 1, -1, -1):
        choice[undo.places[i]] = undo.chosen[i]


@compiled
def _set(state, gap, answer, undo):  # type: ignore[no-untyped-def]
    count = undo.counts[0]
    if state[gap] != answer and count < undo.gaps.shape[0]:
        undo.gaps[count], undo.answers[count] = gap, state[gap]
        undo.counts[0] = count + 1
        state[gap] = answer


@compiled
def _choose(choice, place, option, undo):  # type: ignore[no-untyped-def]
    count = undo.counts[1]
    if choice[place] != option and count < undo.places.shape[0]:
        undo.places[count], undo.chosen[count] = place, choice[place]
        undo.counts[1] = count + 1
        choice[place] = option


@compiled
def _pick(cumulative):  # type: ignore[no-untyped-def]
    return np.searchsorted(cumulative, np.random.random() * cumulative[-1], side="right")


@compiled
def _another(now):  # type: ignore[no-untyped-def]
    """One of the other two answers."""
    return ((now & ANSWER) + 1 + np.random.randint(2)) % 3


@compiled
def propose(a, state, choice, moves, undo):  # type: ignore[no-untyped-def]
    """Change `state` and `choice` in place."""
    undo.counts[:] = 0
    kind = np.random.random()
    if kind < 0.05 and moves.delayable.shape[0] > 0:
        _delay(state, moves, undo)
        return
    if kind < 0.05 + moves.choosing and moves.options.shape[0] > 0:
        if np.random.random() < 0.4:
            _other_way(a, state, choice, moves, undo)
        else:
            _keep_this(a, state, choice, moves, undo)
        return
    first = moves.candidates[_pick(moves.cumulative)]
    if kind < 0.40:
        _set(state, first, _another(state[first]), undo)
    elif kind < 0.46:
        _early(state, first, moves, undo)
    elif kind < 0.52:
        _hand_over(state, first, moves, undo)
    elif kind < 0.58:
        _everywhere(state, moves.storage[first], np.random.randint(3), moves, undo)
    elif kind < 0.76:
        _swap(state, first, moves, undo)
    elif kind < 0.87:
        _stretch(state, first, moves, undo)
    else:
        _copy_block(a, state, choice, first, moves, undo)


@compiled
def _delay(state, moves, undo):  # type: ignore[no-untyped-def]
    """Make a finished gradient at the end, holding what it is made from; or make it at once again."""
    gap = moves.delayable[np.random.randint(moves.delayable.shape[0])]
    delay = state[gap] == HOLD
    _set(state, gap, DROP if delay else HOLD, undo)
    for i in range(moves.delays0[gap], moves.delays0[gap + 1]):
        _set(state, moves.delays[i], HOLD if delay else DISCARD, undo)


@compiled
def _other_way(a, state, choice, moves, undo):  # type: ignore[no-untyped-def]
    """Another maker for a storage, or another way to run an op; then often hold what that reads and drop what it does not."""
    place = moves.options[np.random.randint(moves.options.shape[0])]
    op = place - a.bytes.shape[0]
    if op >= 0:
        options = a.ways0[op + 1] - a.ways0[op]
    else:
        options = a.makers0[place + 1] - a.makers0[place]
    _choose(choice, place, (choice[place] + 1 + np.random.randint(options - 1)) % options, undo)
    if op < 0 or np.random.random() < 0.3:
        return
    way = a.ways[a.ways0[op] + choice[place]]
    for g in range(moves.arriving0[op], moves.arriving0[op + 1]):
        gap = moves.arriving[g]
        answer = DROP
        for k in range(a.parts0[way], a.parts0[way + 1]):
            part = a.parts[k]
            for i in range(a.reads0[part], a.reads0[part + 1]):
                if a.reads[i] == moves.storage[gap]:
                    answer = HOLD
        _set(state, gap, answer, undo)


@compiled
def _keep_this(a, state, choice, moves, undo):  # type: ignore[no-untyped-def]
    """Keep a storage; run every op that can work from it that way, and drop what these would read otherwise."""
    first = moves.candidates[_pick(moves.cumulative)]
    storage = moves.storage[first]
    for i in range(moves.serves0[storage], moves.serves0[storage + 1]):
        op = moves.serves_op[i]
        _choose(choice, a.bytes.shape[0] + op, moves.serves_way[i], undo)
        for g in range(moves.arriving0[op], moves.arriving0[op + 1]):
            other = moves.storage[moves.arriving[g]]
            if other != storage and np.random.random() < 0.8:
                _everywhere(state, other, DROP, moves, undo)
    _everywhere(state, storage, HOLD, moves, undo)


@compiled
def _early(state, gap, moves, undo):  # type: ignore[no-untyped-def]
    """Make a dropped storage again some time before it is read; or shift that moment."""
    first = max(moves.gap_start[gap] + 1, moves.backward)
    room = min(moves.gap_end[gap], moves.positions) - first
    if moves.gap_end[gap] == NEVER or room < 1:
        _set(state, gap, _another(state[gap]), undo)
        return
    now = (state[gap] >> EARLY) & _FARTHEST
    if now > 0 and np.random.random() < 0.5:
        ahead = now + np.random.randint(-8, 9)
    elif np.random.random() < 0.5:
        ahead = 1 + np.random.randint(room)
    else:
        ahead = 1 + np.random.randint(min(room, 12))
    ahead = min(max(ahead, 0), room)
    until = state[gap] >> UNTIL << UNTIL
    _set(state, gap, until | ahead << EARLY | DROP, undo)


@compiled
def _hand_over(state, gap, moves, undo):  # type: ignore[no-untyped-def]
    """At some moment make what is made from this storage, and drop it there."""
    storage = moves.storage[gap]
    options = moves.children0[storage + 1] - moves.children0[storage]
    if moves.gap_end[gap] == NEVER or options == 0:
        _set(state, gap, _another(state[gap]), undo)
        return
    child = moves.children[moves.children0[storage] + np.random.randint(options)]
    waits = moves.waits0[child + 1] - moves.waits0[child]
    if waits == 0:
        return
    other = moves.waits[moves.waits0[child] + np.random.randint(waits)]
    first = max(moves.gap_start[gap], moves.gap_start[other], moves.backward) + 1
    last = min(moves.gap_end[gap], moves.gap_end[other])
    if first >= last:
        return
    moment = first + np.random.randint(last - first)
    held = (moment - moves.gap_start[gap]) << UNTIL
    kept = ((state[gap] >> EARLY) & _FARTHEST) << EARLY
    _set(state, gap, held | kept | DROP, undo)
    ahead = (moves.gap_end[other] - moment) << EARLY
    _set(state, other, ahead | DROP, undo)


@compiled
def _swap(state, first, moves, undo):  # type: ignore[no-untyped-def]
    """Hold this one and drop another, or the reverse."""
    was_held = state[first] == HOLD
    for _ in range(12):
        other = moves.candidates[_pick(moves.cumulative)]
        if other != first and (state[other] == HOLD) != was_held:
            _set(state, other, HOLD if was_held else DROP, undo)
            break
    _set(state, first, DROP if was_held else HOLD, undo)


@compiled
def _everywhere(state, storage, answer, moves, undo):  # type: ignore[no-untyped-def]
    """Give all waits of a storage one answer."""
    for i in range(moves.waits0[storage], moves.waits0[storage + 1]):
        _set(state, moves.waits[i], answer, undo)


@compiled
def _stretch(state, first, moves, undo):  # type: ignore[no-untyped-def]
    """Give a run of neighbouring gaps one answer."""
    place = np.searchsorted(moves.candidates, first)
    length = 2 + np.random.randint(_LONGEST_RUN - 2)
    answer = np.random.randint(3)
    last_too = np.random.random() < 0.3
    for i in range(place, min(place + length, moves.candidates.shape[0])):
        g = moves.candidates[i]
        if moves.gap_end[g] != NEVER or last_too:
            _set(state, g, answer, undo)


@compiled
def _copy_block(a, state, choice, first, moves, undo):  # type: ignore[no-untyped-def]
    """Give the gaps after a twin of this one the answers of the gaps after this one, and the ops their ways, as far as they
    look alike."""
    other = moves.twin[first]
    for _ in range(np.random.randint(4)):
        other = moves.twin[other]
    if other == first:
        _set(state, first, _another(state[first]), undo)
        return
    storages = a.bytes.shape[0]
    for i in range(1 + np.random.randint(4 * _LONGEST_RUN)):
        here, there = first + i, other + i
        if max(here, there) >= moves.shape.shape[0] or moves.shape[here] != moves.shape[there]:
            break
        if moves.shape[here] < 0:
            continue
        _set(state, there, state[here], undo)
        if moves.gap_end[here] != NEVER and moves.gap_end[there] != NEVER:
            one, two = a.order[moves.gap_end[here]], a.order[moves.gap_end[there]]
            if a.ways0[one + 1] - a.ways0[one] == a.ways0[two + 1] - a.ways0[two]:
                _choose(choice, storages + two, choice[storages + one], undo)
