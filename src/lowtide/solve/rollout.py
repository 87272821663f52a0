"""What program follows from the answers, and what does it cost? The planner's inner loop, compiled.

`run` plays the captured ops in order under given answers: what an op reads and is not there is made again first, with
whatever that needs, in captured order. `weigh` walks the result backwards, as the simulator does, dropping dead ops, narrowing
half-dead ones and adding up bytes and seconds. They are a fast path: `sim/memory.py` is the authority, and every program that
leaves the planner has been through it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from lowtide.solve.compiled import compiled, inlined
from lowtide.solve.gaps import ANSWER, DISCARD, EARLY, HOLD, UNTIL
from lowtide.solve.problem import Problem

__all__ = ["FAILED", "Arrays", "arrays", "run", "weigh"]

FAILED = -1
_Array = NDArray[Any]


class Arrays(NamedTuple):
    """The problem as compiled code takes it. `x0[i]:x0[i + 1]` is the stretch of `x` that belongs to i."""

    bytes: _Array
    seconds: _Array
    workspace: _Array
    effect: _Array
    reads0: _Array
    reads: _Array
    makes0: _Array
    makes: _Array
    over0: _Array
    over: _Array
    makers0: _Array
    makers: _Array
    narrower0: _Array
    narrower: _Array
    ways0: _Array
    ways: _Array
    parts0: _Array
    parts: _Array
    again: _Array
    order: _Array
    segment: _Array
    spare: _Array
    let_go0: _Array
    let_go: _Array
    arrives0: _Array
    arrives: _Array
    finished: _Array
    """Storages the caller gets: once made for the end they stay."""
    touches0: _Array
    touches: _Array
    next_gap: _Array
    gap_storage: _Array
    gap_start: _Array
    gap_end: _Array


def arrays(problem: Problem) -> Arrays:
    p = problem
    return Arrays(
        bytes=p.bytes, seconds=p.seconds, workspace=p.workspace, effect=p.effect,
        reads0=p.reads.start, reads=p.reads.items, makes0=p.makes.start, makes=p.makes.items,
        over0=p.over.start, over=p.over.items, makers0=p.makers.start, makers=p.makers.items,
        narrower0=p.narrower.start, narrower=p.narrower.items,
        ways0=p.ways.start, ways=p.ways.items, parts0=p.parts.start, parts=p.parts.items,
        again=p.again, order=p.order, segment=p.segment, spare=p.spare,
        let_go0=p.let_go.start, let_go=p.let_go.items,
        arrives0=p.arrives.start, arrives=p.arrives.items,
        finished=p.finished, touches0=p.gaps.touches.start, touches=p.gaps.touches.items, next_gap=p.gaps.next,
        gap_storage=p.gaps.storage, gap_start=p.gaps.start, gap_end=p.gaps.end,
    )  # fmt: skip


@inlined
def _maker(a, storage, segment, first):  # type: ignore[no-untyped-def]
    """The op that makes a storage again in this segment: the `first`-th of those that may, or the next; -1 if none may."""
    options = a.makers0[storage + 1] - a.makers0[storage]
    for j in range(options):
        candidate = a.makers[a.makers0[storage] + (first + j) % options]
        if a.again[candidate, segment]:
            return candidate
    return -1


@inlined
def _missing(a, top, segment, choice, alive, marked, stack, burst):  # type: ignore[no-untyped-def]
    """The ops to run so that the first `top` storages on the stack are there, in captured order in `burst`. Returns how many, or
    FAILED."""
    count = 0
    failed = False
    while top > 0 and not failed:
        top -= 1
        storage = stack[top]
        maker = _maker(a, storage, segment, choice[storage])
        if maker < 0:
            failed = True
        elif not marked[maker]:
            marked[maker] = True
            burst[count] = maker
            count += 1
            for i in range(a.reads0[maker], a.reads0[maker + 1]):
                if not alive[a.reads[i]]:
                    if top >= stack.shape[0]:
                        failed = True
                        break
                    stack[top] = a.reads[i]
                    top += 1
    for j in range(count):
        marked[burst[j]] = False
    if count > 1:
        burst[:count].sort()
    return FAILED if failed else count


@compiled
def _note_events(a, state, event0, event_next):  # type: ignore[no-untyped-def]
    """List, for each position, the gaps whose storage is made early there (2 * gap) or dropped at last (2 * gap + 1)."""
    event0[:] = -1
    for gap in range(state.shape[0]):
        if state[gap] <= ANSWER:
            continue
        early = (state[gap] >> EARLY) & 0xFFFFFF
        until = state[gap] >> UNTIL
        start, end = a.gap_start[gap], min(a.gap_end[gap], a.order.shape[0])
        if early > 0 and end - early > start and a.segment[end - early] == a.segment[end]:
            event_next[2 * gap] = event0[end - early]
            event0[end - early] = 2 * gap
        if until > 0 and start + until < end:
            event_next[2 * gap + 1] = event0[start + until]
            event0[start + until] = 2 * gap + 1


@inlined
def _there(a, op, alive):  # type: ignore[no-untyped-def]
    """All that the op makes."""
    absent = 0
    for i in range(a.makes0[op], a.makes0[op + 1]):
        absent += not alive[a.makes[i]]
    return absent == 0


@compiled
def run(a, state, choice, buffers):  # type: ignore[no-untyped-def]
    """Play the captured ops. Fills the buffers seq_op and seq_pos; returns the length, or FAILED if something cannot be made.

    `choice`: for each storage which of its makers makes it again, then for each op which of its ways it runs."""
    seq_op, seq_pos, alive, gap_now = (
        buffers.seq_op,
        buffers.seq_pos,
        buffers.alive,
        buffers.gap_now,
    )
    marked, stack, burst = buffers.marked, buffers.stack, buffers.burst
    event0, event_next = buffers.event0, buffers.event_next
    n = 0
    alive[:] = False
    gap_now[:] = -1
    here = -1
    ways = a.bytes.shape[0]
    _note_events(a, state, event0, event_next)
    for position in range(a.order.shape[0]):
        op = a.order[position]
        while here < a.segment[position]:
            here += 1
            for i in range(a.arrives0[here], a.arrives0[here + 1]):
                alive[a.arrives[i]] = True
        way = a.ways[a.ways0[op] + choice[ways + op] % (a.ways0[op + 1] - a.ways0[op])]
        start = n
        event = event0[position]
        part = a.parts0[way]
        if a.spare[op] and _there(a, op, alive):
            part = a.parts0[way + 1]
        while event >= 0 or part < a.parts0[way + 1]:
            # First what is made early here, then the op itself.
            top = 0
            last = -1
            if event >= 0:
                storage = a.gap_storage[event // 2]
                if event % 2 == 0 and not alive[storage]:
                    stack[0] = storage
                    top = 1
                event = event_next[event]
                if top == 0:
                    continue
            else:
                last = a.parts[part]
                part += 1
                for i in range(a.reads0[last], a.reads0[last + 1]):
                    if not alive[a.reads[i]]:
                        stack[top] = a.reads[i]
                        top += 1
            count = _missing(a, top, here, choice, alive, marked, stack, burst)
            if count == FAILED or n + count + 1 > seq_op.shape[0]:
                return FAILED
            if last >= 0:
                burst[count] = last
                count += 1
            for j in range(count):
                seq_op[n] = burst[j]
                seq_pos[n] = position
                n += 1
                for i in range(a.reads0[burst[j]], a.reads0[burst[j] + 1]):
                    if not alive[a.reads[i]]:
                        return FAILED  # two makers that need each other's output
                for i in range(a.makes0[burst[j]], a.makes0[burst[j] + 1]):
                    alive[a.makes[i]] = True
        event = event0[position]
        while event >= 0:
            storage = a.gap_storage[event // 2]
            if event % 2 == 1 and gap_now[storage] == event // 2:
                alive[storage] = False
            event = event_next[event]
        for i in range(a.touches0[position], a.touches0[position + 1]):
            s = a.touches[i]
            gap = a.next_gap[i]
            gap_now[s] = gap
            alive[s] = alive[s] and (state[gap] == HOLD or state[gap] >> UNTIL > 0)
        for j in range(start, n):
            for i in range(a.makes0[seq_op[j]], a.makes0[seq_op[j] + 1]):
                s = a.makes[i]
                # What only rules make is there for the op that asked for it.
                if gap_now[s] < 0 or (state[gap_now[s]] == DISCARD and not a.finished[s]):
                    alive[s] = False
    return n


@inlined
def _narrowed(a, op, live):  # type: ignore[no-untyped-def]
    """The cheapest form of the op that makes all its outputs that are read; -1 if none is read and it has no effect."""
    wanted = 0
    made = a.makes0[op + 1] - a.makes0[op]
    for i in range(a.makes0[op], a.makes0[op + 1]):
        if live[a.makes[i]]:
            wanted += 1
    if wanted == 0 and not a.effect[op]:
        return -1
    best = op
    if wanted < made:
        for j in range(a.narrower0[op], a.narrower0[op + 1]):
            form = a.narrower[j]
            covered = 0
            for i in range(a.makes0[form], a.makes0[form + 1]):
                if live[a.makes[i]]:
                    covered += 1
            if covered == wanted and a.seconds[form] < a.seconds[best]:
                best = form
    return best


@compiled
def weigh(a, buffers, length, during):  # type: ignore[no-untyped-def]
    """Walk a rollout backwards. Fills `runs` (not dead) and `during` (most bytes at each position), narrows `seq_op`; returns
    (seconds, peak), the base left out."""
    seq_op, seq_pos, live, runs = buffers.seq_op, buffers.seq_pos, buffers.live, buffers.runs
    live[:] = False
    during[:] = 0
    total = 0.0
    now = 0
    peak = 0
    here = a.let_go0.shape[0] - 1
    for index in range(length - 1, -1, -1):
        position = seq_pos[index]
        segment = a.segment[position]
        while here > segment:
            here -= 1
            for i in range(a.let_go0[here], a.let_go0[here + 1]):
                s = a.let_go[i]
                if not live[s]:
                    live[s] = True
                    now += a.bytes[s]
        op = _narrowed(a, seq_op[index], live)
        runs[index] = op >= 0
        if op >= 0:
            seq_op[index] = op
            most = now + a.workspace[op]
            for i in range(a.over0[op], a.over0[op + 1]):
                if not live[a.over[i]]:
                    most -= a.bytes[a.over[i]]  # written over: the two are never there at once
                    break
            for i in range(a.makes0[op], a.makes0[op + 1]):
                s = a.makes[i]
                if live[s]:
                    live[s] = False
                    now -= a.bytes[s]
                else:
                    most += a.bytes[s]
            for i in range(a.reads0[op], a.reads0[op + 1]):
                s = a.reads[i]
                if not live[s]:
                    live[s] = True
                    now += a.bytes[s]
                    most += a.bytes[s]
            total += a.seconds[op]
            during[position] = max(during[position], most)
            peak = max(peak, most)
        before = -1 if index == 0 else a.segment[seq_pos[index - 1]]
        for s in range(segment, before, -1):
            # The start of a segment: what arrives there was not before.
            most = now
            for i in range(a.arrives0[s], a.arrives0[s + 1]):
                arrived = a.arrives[i]
                if live[arrived]:
                    live[arrived] = False
                    now -= a.bytes[arrived]
                else:
                    most += a.bytes[arrived]
            during[position] = max(during[position], most)
            peak = max(peak, most)
    return total, peak
