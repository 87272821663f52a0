"""Which answers are worth trying next? The moves of the annealing, compiled.

A move changes one gap, swaps a held one with a dropped one, sets a run of neighbouring gaps alike (a stretch of layers), makes a
storage again earlier than it is read, runs an op another way, keeps others of several tensors that would do, or treats one block
like another of the same kind, or exchanges their treatments: networks repeat, and what is good for one layer is good for its
twins. Every move
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
_LONGEST_BLOCK = 7
"""Powers of two."""
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
    kind: _Array
    """Of each storage: a number, the same for storages that are made and read by the same kinds of ops."""
    alike0: _Array
    alike: _Array
    """For each kind its storages."""
    own0: _Array
    own: _Array
    """For each storage its open gaps."""
    leads0: _Array
    leads: _Array
    """For each storage the ops with several ways of which it is the first that one of them reads."""
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
    group_of: _Array
    """Of each storage: those that ops with several ways read in one way or another are one group ..."""
    group0: _Array
    group: _Array
    group_ops0: _Array
    group_ops: _Array
    """... with these ops."""
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
        if np.random.random() < 0.3:
            _other_way(a, state, choice, moves, undo)
            return
        # One of them, or two at once: what one gives up the other gets.
        for _ in range(1 + np.random.randint(2)):
            gap = moves.candidates[_pick(moves.cumulative)]
            _treat(a, state, choice, moves.group_of[moves.storage[gap]], moves, undo)
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
    elif kind < 0.74:
        _swap(state, first, moves, undo)
    elif kind < 0.82:
        _stretch(state, first, moves, undo)
    else:
        _twin_blocks(a, state, choice, first, np.random.random() < 0.6, moves, undo)


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
def _treat(a, state, choice, group, moves, undo):  # type: ignore[no-untyped-def]
    """Keep some of the storages that would do for the same ops and drop the others; run these ops on what is kept."""
    for i in range(moves.group0[group], moves.group0[group + 1]):
        answer = HOLD if np.random.random() < 0.5 else DROP
        _everywhere(state, moves.group[i], answer, moves, undo)
    for i in range(moves.group_ops0[group], moves.group_ops0[group + 1]):
        op = moves.group_ops[i]
        options = a.ways0[op + 1] - a.ways0[op]
        first = np.random.randint(options)
        best = first
        for k in range(options):
            way = (first + k) % options
            if _works_from_kept(a, state, a.ways[a.ways0[op] + way], group, moves):
                best = way
                break
        _choose(choice, a.bytes.shape[0] + op, best, undo)


@compiled
def _works_from_kept(a, state, way, group, moves):  # type: ignore[no-untyped-def]
    for k in range(a.parts0[way], a.parts0[way + 1]):
        part = a.parts[k]
        for i in range(a.reads0[part], a.reads0[part + 1]):
            s = a.reads[i]
            waits = moves.group_of[s] == group and moves.waits0[s] < moves.waits0[s + 1]
            if waits and state[moves.waits[moves.waits0[s]]] != HOLD:
                return False
    return True


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
    # At the latest when that is read.
    last = min(moves.gap_end[gap], moves.gap_end[other] + 1)
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
def _twin_blocks(a, state, choice, first, exchange, moves, undo):  # type: ignore[no-untyped-def]
    """Treat a stretch of storages like another one of the same kinds; or exchange their treatments, so that one gives up the
    bytes that the other gets."""
    here = moves.storage[first]
    kind = moves.kind[here]
    among = moves.alike0[kind + 1] - moves.alike0[kind]
    there = moves.alike[moves.alike0[kind] + np.random.randint(among)]
    if there == here:
        _set(state, first, _another(state[first]), undo)
        return
    for k in range(int(2 ** (np.random.random() * _LONGEST_BLOCK))):
        one, two = here + k, there + k
        if max(one, two) >= moves.kind.shape[0] or moves.kind[one] != moves.kind[two]:
            break
        if exchange and k >= abs(here - there):
            break
        for i in range(moves.own0[one + 1] - moves.own0[one]):
            _pass_on(
                state,
                moves.own[moves.own0[one] + i],
                moves.own[moves.own0[two] + i],
                exchange,
                undo,
            )
        # The ops that read it first of what they can work from: each op belongs to one storage.
        for i in range(moves.leads0[one + 1] - moves.leads0[one]):
            place = a.bytes.shape[0] + moves.leads[moves.leads0[one] + i]
            other = a.bytes.shape[0] + moves.leads[moves.leads0[two] + i]
            was = choice[other]
            _choose(choice, other, choice[place], undo)
            if exchange:
                _choose(choice, place, was, undo)


@compiled
def _pass_on(state, gap, other, exchange, undo):  # type: ignore[no-untyped-def]
    was = state[other]
    _set(state, other, state[gap], undo)
    if exchange:
        _set(state, gap, was, undo)
