"""What program follows from the answers, and what does it cost? The planner's inner loop, compiled.

`run` plays the captured ops in order under given answers: what an op reads and is not there is made again first, with
whatever that needs, in captured order. `weigh` walks the result backwards, as the simulator does, dropping dead ops and adding
up bytes and seconds. They are a fast path: `sim/memory.py` is the authority, and every program that leaves the planner has been
through it.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lowtide.solve.compiled import compiled
from lowtide.solve.problem import DISCARD, HOLD, Problem

__all__ = ["FAILED", "Arrays", "arrays", "run", "weigh"]

Arrays = tuple[NDArray[Any], ...]
FAILED = -1


def arrays(problem: Problem) -> Arrays:
    """The problem as the flat tuple that compiled code takes."""
    return (
        problem.bytes,
        problem.seconds,
        problem.workspace,
        problem.effect,
        problem.reads.start,
        problem.reads.items,
        problem.makes.start,
        problem.makes.items,
        problem.makers.start,
        problem.makers.items,
        problem.again,
        problem.order,
        problem.segment,
        problem.let_go.start,
        problem.let_go.items,
        problem.arrives.start,
        problem.arrives.items,
        problem.gaps.touches.start,
        problem.gaps.touches.items,
        problem.gaps.next,
    )


@compiled
def run(a, state, choice, seq_op, seq_pos, alive, gap_now, marked, stack, burst):  # type: ignore[no-untyped-def]
    """Play the captured ops. Fills seq_op / seq_pos; returns the length, or FAILED if something cannot be made."""
    (_, _, _, _, r0, r, m0, m, k0, k, again, order, segment, _, _, a0, ar, t0, t, ngap) = a
    limit = seq_op.shape[0]
    n = 0
    alive[:] = False
    gap_now[:] = -1
    here = -1
    for position in range(order.shape[0]):
        op = order[position]
        seg = segment[position]
        while here < seg:
            here += 1
            for i in range(a0[here], a0[here + 1]):
                alive[ar[i]] = True
        # What is missing, and what it takes to make it.
        top = 0
        count = 0
        for i in range(r0[op], r0[op + 1]):
            if not alive[r[i]]:
                stack[top] = r[i]
                top += 1
        while top > 0:
            top -= 1
            s = stack[top]
            if alive[s]:
                continue
            options = k0[s + 1] - k0[s]
            maker = -1
            for j in range(options):
                candidate = k[k0[s] + (choice[s] + j) % options]
                if again[candidate, seg]:
                    maker = candidate
                    break
            if maker < 0:
                for j in range(count):
                    marked[burst[j]] = False
                return FAILED
            if marked[maker]:
                continue
            marked[maker] = True
            burst[count] = maker
            count += 1
            for i in range(r0[maker], r0[maker + 1]):
                if not alive[r[i]]:
                    if top >= stack.shape[0]:
                        for j in range(count):
                            marked[burst[j]] = False
                        return FAILED
                    stack[top] = r[i]
                    top += 1
        if count > 1:
            burst[:count].sort()
        if n + count + 1 > limit:
            for j in range(count):
                marked[burst[j]] = False
            return FAILED
        for j in range(count):
            maker = burst[j]
            marked[maker] = False
            seq_op[n] = maker
            seq_pos[n] = position
            n += 1
            for i in range(m0[maker], m0[maker + 1]):
                alive[m[i]] = True
        seq_op[n] = op
        seq_pos[n] = position
        n += 1
        for i in range(t0[position], t0[position + 1]):
            s = t[i]
            gap_now[s] = ngap[i]
            alive[s] = state[ngap[i]] == HOLD
        for j in range(count):
            maker = burst[j]
            for i in range(m0[maker], m0[maker + 1]):
                s = m[i]
                if gap_now[s] >= 0 and state[gap_now[s]] == DISCARD:
                    alive[s] = False
    return n


@compiled
def weigh(a, seq_op, seq_pos, length, live, runs, during):  # type: ignore[no-untyped-def]
    """Walk a rollout backwards. Fills `runs` (not dead) and `during` (most bytes at each position); returns
    (seconds, peak), the base left out."""
    (
        size,
        seconds,
        workspace,
        effect,
        r0,
        r,
        m0,
        m,
        _,
        _,
        _,
        _order,
        segment,
        l0,
        lg,
        a0,
        ar,
        _,
        _,
        _,
    ) = a
    live[:] = False
    during[:] = 0
    total = 0.0
    now = 0
    peak = 0
    here = l0.shape[0] - 1
    for index in range(length - 1, -1, -1):
        op = seq_op[index]
        position = seq_pos[index]
        while here > segment[position]:
            here -= 1
            for i in range(l0[here], l0[here + 1]):
                if not live[lg[i]]:
                    live[lg[i]] = True
                    now += size[lg[i]]
            if here < segment[position]:
                break
        used = effect[op]
        for i in range(m0[op], m0[op + 1]):
            if live[m[i]]:
                used = True
                break
        runs[index] = used
        if used:
            most = now + workspace[op]
            for i in range(m0[op], m0[op + 1]):
                if not live[m[i]]:
                    most += size[m[i]]
            for i in range(r0[op], r0[op + 1]):
                if not live[r[i]]:
                    most += size[r[i]]
            for i in range(m0[op], m0[op + 1]):
                if live[m[i]]:
                    live[m[i]] = False
                    now -= size[m[i]]
            for i in range(r0[op], r0[op + 1]):
                if not live[r[i]]:
                    live[r[i]] = True
                    now += size[r[i]]
            total += seconds[op]
            if most > during[position]:
                during[position] = most
            if most > peak:
                peak = most
        if index == 0 or segment[seq_pos[index - 1]] < segment[position]:
            # The start of a segment: what arrives there was not before.
            first = 0 if index == 0 else segment[seq_pos[index - 1]] + 1
            for s in range(segment[position], first - 1, -1):
                most = now
                for i in range(a0[s], a0[s + 1]):
                    if not live[ar[i]]:
                        most += size[ar[i]]
                for i in range(a0[s], a0[s + 1]):
                    if live[ar[i]]:
                        live[ar[i]] = False
                        now -= size[ar[i]]
                if most > during[position]:
                    during[position] = most
                if most > peak:
                    peak = most
    return total, peak
