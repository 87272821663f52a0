"""What does the planner decide on? The graph as arrays, and the list of open questions.

The captured ops run in their captured order, each segment ending with *returns* that read what the caller gets; between
them, tensors wait. Each wait of a storage, from one captured op that touches it to the next, is a **gap** (`solve/gaps.py`),
and for each gap there is one question: *hold* the storage through it, *drop* it and make
it again when it is next read (and if something else needs it remade earlier, hold that copy), or *drop* it and discard
such early copies too. A storage's last gap has no reader at its end; holding it there only serves to remake others.

That is all: recomputation just in time, repeated recomputation, late making (an op whose outputs are dropped before
anybody reads them does not run at all) and delayed gradients are answers to these questions. And one thing needs no
question: an op of which only some outputs are read gives way to its cheapest **narrower** form that makes those.

Besides the gaps there are choices: for a storage with several makers, which of them makes it again; and for a captured op that
rules have other forms of, by which of these **ways** it runs in its place. `Problem`
lists it all, with views folded away, for `solve/rollout.py` to run and `solve/search.py` to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Graph, Op, home_segment
from lowtide.ir.program import Program
from lowtide.ir.storages import Folded, fold
from lowtide.solve.gaps import Flags, Gaps, Ints, Layout, Lists, find_gaps, pack

__all__ = ["Problem", "make_problem"]


@dataclass(frozen=True)
class Problem:
    """Ops and storages by number. Storages the caller owns are not here: they are in `base_bytes`."""

    graph: Graph
    op_names: tuple[str, ...]
    """Ops beyond these are the returns."""
    storage_names: tuple[str, ...]
    base_bytes: int
    bytes: Ints
    seconds: NDArray[np.float64]
    workspace: Ints
    effect: Flags
    reads: Lists
    makes: Lists
    over: Lists
    """For each op the storages over which its output may be written."""
    makers: Lists
    """For each storage the ops that may make it again, those that make least besides it first."""
    narrower: Lists
    """For each op the ops of rules that make some of its outputs from the same inputs."""
    ways: Lists
    """For each op the ways to run it where it was captured: numbers of rows of `parts`, itself first ..."""
    parts: Lists
    """... and for each way the ops that make, together, what the captured op makes."""
    again: Flags
    """[op, segment]: may this op run there once more?"""
    order: Ints
    """The captured ops, in order, and among them the rules' ops that make what only a later segment reads."""
    segment: Ints
    """The segment of each position in `order`."""
    spare: Flags
    """[op]: a rule's op in `order`, which does not run where another form has made what it makes."""
    let_go: Lists
    """For each segment the storages the caller lets go of at its end."""
    arrives: Lists
    """For each segment the storages that come from outside at its start."""
    finished: Flags
    """Storages that the caller gets."""
    gaps: Gaps

    @property
    def captured_seconds(self) -> float:
        return sum(op.seconds for op in self.graph.captured if not self.graph.is_view(op))

    @cached_property
    def storage_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.storage_names)}

    @cached_property
    def op_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.op_names)}

    def program(self, positions: Ints, ops: Ints) -> Program:
        """The `Program` of a rollout: op numbers, each with the position of the captured op it runs for."""
        steps: list[list[str]] = [[] for _ in self.graph.segments]
        for position, op in zip(positions.tolist(), ops.tolist(), strict=True):
            if op < len(self.op_names):
                steps[int(self.segment[position])].append(self.op_names[op])
        return Program(tuple(tuple(s) for s in steps))


def make_problem(graph: Graph) -> Problem:
    folded = fold(graph)
    storages = [v.name for v in graph.values if not v.is_view and v.name not in folded.owned]
    number = {name: i for i, name in enumerate(storages)}
    ops = folded.ops
    op_number = {o.name: i for i, o in enumerate(ops)}

    def numbers(names: tuple[str, ...]) -> list[int]:
        return [number[s] for s in names if s in number]

    returns = _returns(ops, graph, folded)
    reads = [numbers(folded.reads[o.name]) for o in ops]
    reads += [numbers(tuple(names)) for _, names in returns]
    makes = [numbers(folded.makes[o.name]) for o in ops] + [[] for _ in returns]
    held = _held(graph)
    again = np.zeros((len(reads), len(graph.segments)), np.bool_)
    for i, op in enumerate(ops):
        again[i] = [_may_run_again(graph, held, op, s) for s in range(len(graph.segments))]
    makers: list[list[int]] = [[] for _ in storages]
    for i in sorted(range(len(ops)), key=lambda i: len(makes[i])):
        if again[i].any():
            for s in makes[i]:
                makers[s].append(i)
    encoders = _encoders(graph, ops)
    order: list[int] = []
    segment: list[int] = []
    for which in range(len(graph.segments)):
        here = [
            op_number[o.name]
            for o in ops
            if o.segment == which and (not o.rule or o.name in encoders)
        ]
        here += [len(ops) + i for i, (at, _) in enumerate(returns) if at == which]
        order += here
        segment += [which] * len(here)
    nothing = np.zeros(len(returns))
    ways, parts = _ways(ops, op_number, reads, makes, again)
    return Problem(
        graph=graph,
        op_names=tuple(o.name for o in ops),
        storage_names=tuple(storages),
        base_bytes=sum(graph.held.values()) + sum(folded.bytes[s] for s in folded.owned),
        bytes=np.array([folded.bytes[s] for s in storages], np.int64),
        seconds=np.concatenate([[o.seconds for o in ops], nothing]),
        workspace=np.concatenate([[o.workspace for o in ops], nothing]).astype(np.int64),
        effect=np.concatenate([[o.effect for o in ops], nothing == 0]).astype(np.bool_),
        reads=pack(reads),
        makes=pack(makes),
        over=pack([numbers(o.over) for o in ops] + [[] for _ in returns]),
        makers=pack(makers),
        narrower=pack(_narrower(ops, op_number, reads, makes)),
        ways=ways,
        parts=parts,
        again=again,
        order=np.array(order, np.int64),
        segment=np.array(segment, np.int64),
        spare=np.array([o.name in encoders for o in ops] + [False] * len(returns)),
        let_go=pack(_let_go(graph, number)),
        arrives=pack(
            [
                [number[s] for s, since in folded.arrives.items() if since == segment]
                for segment in range(len(graph.segments))
            ]
        ),
        finished=np.isin(np.arange(len(storages)), [s for row in reads[len(ops) :] for s in row]),
        gaps=find_gaps(
            Layout(graph, folded, number, order, segment, reads, makes, makers, again, ways, parts)
        ),
    )


def _returns(ops: tuple[Op, ...], graph: Graph, folded: Folded) -> list[tuple[int, list[str]]]:
    """What the caller gets, as (segment, storages): at once at the end of a first segment, one by one at the end of a later one.

    One by one, so that a gradient which is made only then has what it is made from made, or kept, for itself; the one
    with the largest working set first, when the fewest gradients are there."""
    pieces = [s.piece for s in graph.segments]
    found: list[tuple[int, list[str]]] = []
    for segment, piece in enumerate(pieces):
        wanted = dict.fromkeys(
            graph.storage(r.value) for r in graph.required if r.segment == segment
        )
        names = [n for n in wanted if n not in folded.owned]
        if piece in pieces[:segment]:
            heavy = _working_sets(ops, graph, folded)
            ordered = sorted(names, key=lambda n: -heavy.get(n, 0))
            # At least one, so that what arrives in a segment without ops is there for a moment.
            found += [(segment, [n]) for n in ordered] or [(segment, [])]
        else:
            found.append((segment, names))
    return found


def _working_sets(ops: tuple[Op, ...], graph: Graph, folded: Folded) -> dict[str, int]:
    """For each storage the bytes its smallest maker needs besides it."""
    least: dict[str, int] = {}
    for op in ops:
        needs = op.workspace + sum(folded.bytes[s] for s in folded.reads[op.name])
        for name in folded.makes[op.name]:
            least[name] = min(least.get(name, needs), needs)
    return least


def _encoders(graph: Graph, ops: tuple[Op, ...]) -> set[str]:
    """Ops of rules that run in the captured order as well: they make, early, what only a later segment reads. Where nobody does,
    they are dead and do not run."""
    captured = {name for o in graph.captured for name in o.outputs}
    needed: dict[str, int] = {}
    for op in ops:
        for name in op.inputs:
            needed[name] = min(needed.get(name, op.segment), op.segment)
    return {
        o.name
        for o in ops
        if o.rule and captured.isdisjoint(o.outputs)
        and all(needed.get(name, o.segment) > o.segment for name in o.outputs)
    }  # fmt: skip


def _narrower(
    ops: tuple[Op, ...], op_number: dict[str, int], reads: list[list[int]], makes: list[list[int]]
) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in reads]
    for op in ops:
        if op.of in op_number:
            wide, narrow = op_number[op.of], op_number[op.name]
            if set(makes[narrow]) < set(makes[wide]) and set(reads[narrow]) <= set(reads[wide]):
                found[wide].append(narrow)
    return found


def _ways(
    ops: tuple[Op, ...],
    op_number: dict[str, int],
    reads: list[list[int]],
    makes: list[list[int]],
    again: Flags,
) -> tuple[Lists, Lists]:
    """Each captured op as itself, and as every set of rules' ops that make its outputs between them, each once; also as one that makes
    something else in the place of some, for other forms of the ops that read these. Where one part reads a copy and a later one the original, the
    original may also be copied back between them, so that the copy can be written over it."""
    backs: dict[int, list[int]] = {}
    for i, op in enumerate(ops):
        if op.target == "lowtide.copy_back":
            backs.setdefault(reads[i][0], []).append(i)
    forms: dict[int, list[int]] = {}
    others: dict[int, list[int]] = {}
    for op in ops:
        captured, form = op_number.get(op.of, -1), op_number[op.name]
        if captured < 0 or not again[captured].any() or not again[form, op.segment]:
            continue
        if op.segment != ops[captured].segment:  # only later: to make it again
            continue
        if makes[form] and set(makes[form]) <= set(makes[captured]):
            forms.setdefault(captured, []).append(form)
        elif set(makes[form]) & set(makes[captured]):
            others.setdefault(captured, []).append(form)
    ways: list[list[int]] = []
    parts: list[list[int]] = []
    for i in range(len(makes)):
        found = [[i], *(_covers(set(makes[i]), forms[i], makes) if i in forms else ())]
        found += [[form] for form in others.get(i, ())]
        found += [way for way in (_copying_back(one, backs, reads, makes) for one in found) if way]
        ways.append([*range(len(parts), len(parts) + len(found))])
        parts += found
    return pack(ways), pack(parts)


def _copying_back(
    way: list[int], backs: dict[int, list[int]], reads: list[list[int]], makes: list[list[int]]
) -> list[int]:
    """The same parts with copies back before those that read an original again; empty if there are none. `backs`: by the copy."""
    made: list[int] = []
    there: list[int] = []
    """Copies back of what earlier parts read."""
    for part in way:
        made += [b for b in there if makes[b][0] in reads[part]]
        made.append(part)
        there += [b for copy in reads[part] for b in backs.get(copy, ())]
    return made if len(made) > len(way) else []


def _covers(wanted: set[int], forms: list[int], makes: list[list[int]]) -> list[list[int]]:
    """Every set of forms that makes each wanted storage exactly once, in the forms' order."""
    if not wanted or not forms:
        return [] if wanted else [[]]
    first, rest = forms[0], forms[1:]
    found = _covers(wanted, rest, makes)
    if wanted.issuperset(makes[first]):
        found = [
            [first, *others] for others in _covers(wanted - set(makes[first]), rest, makes)
        ] + found
    return found


def _held(graph: Graph) -> dict[str, tuple[int, int]]:
    """For each storage the caller gets, the segment it gets it in and the one it lets go of it in."""
    return {graph.storage(r.value): (r.segment, r.until) for r in graph.required}


def _may_run_again(graph: Graph, held: dict[str, tuple[int, int]], op: Op, segment: int) -> bool:
    """Legal there, and everything it reads from outside still exists there."""
    if not op.rerun or not home_segment(graph, op, segment):
        return False
    for name in op.inputs:
        outside = graph.exists_outside.get(graph.storage(name))
        if outside is not None and not outside.since <= segment <= outside.until:
            return False
    # The caller still holds the first copy there; a second one beside it is never worth having.
    return not any(
        lo < segment <= hi for lo, hi in (held.get(o, (segment, segment)) for o in op.outputs)
    )


def _let_go(graph: Graph, number: dict[str, int]) -> list[list[int]]:
    last = len(graph.segments) - 1
    found: list[list[int]] = [[] for _ in graph.segments]
    for required in graph.required:
        storage = graph.storage(required.value)
        if storage in number:
            found[min(required.until, last)].append(number[storage])
    return [list(dict.fromkeys(f)) for f in found]
