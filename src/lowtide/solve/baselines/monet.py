"""What if keeping, recomputing and the choice of implementations are one 0-1 program? MONeT.

Follows Shah, Wu, Mohan, Chidambaram, Kraehenbuehl, "Memory optimization for deep networks" (ICLR 2021). Step 0 is the forward.
Each later step t runs backward op b(t), in the captured order, after a sweep over the forward ops in their order, in which any of
them may be computed once more. With

    R[t,i,p]  forward op i is computed in step t, by implementation p
    S[t,x]    forward storage x is kept on entry to step t
    P[t,p]    backward op b(t) runs by implementation p, which says what it reads, its seconds and its workspace

it asks for the least sum of seconds such that what is read was computed in the step or kept on entry, and the bytes are within the
budget while each forward op of each sweep runs, and while each b(t) runs. Gradients are never recomputed: what is alive of them in
step t is known. Solved by HiGHS, where they used Gurobi, for small graphs.

As in their memory model, while forward op i runs in a sweep every storage counts that is made before i and has a forward reader
after it, whether it is there or not. That is exact for a chain and too much for some recomputations beside a long skip.

How it is written here, and where it deviates, each to be as strong as its idea:
- Implementations are the forms that rules add (`Problem.ways`), with the copies they make for themselves. One that is several
  ops in a row counts each of them; what only the first reads is gone while the next runs.
- What b(t) reads need not be kept beyond it. They demand that it is computed in step t or kept on entry to the next.
- A product of "p is chosen" and "x is kept" needs no variable of its own: where p is not chosen, its row of bytes holds anyhow.
- Encoded copies that outlive an op (their 1-bit masks) exist only as far as rules offer them as forms; in-place ops are the
  simulator's business.
- Where nothing fits, they have no answer; here it is the solution with the smallest peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program, unplanned
from lowtide.sim.memory import simulate
from lowtide.solve.baselines.zero_one import ONE, ZERO, Bytes, Terms, ZeroOne
from lowtide.solve.problem import Problem, make_problem

__all__ = ["monet"]

_FORWARD, _BACKWARD = 0, 1


def monet(graph: Graph, budget: int) -> Program:
    if len(graph.segments) != 2 or len({s.piece for s in graph.segments}) != 1:
        raise GraphError(
            f"MONeT's program knows one forward and one backward; this graph has {len(graph.segments)} segments"
        )
    model = _Model(_Line(make_problem(graph)), budget)
    ones = model.program.solve(model.costs(), model.bytes.room)
    forward, backward = list[str](), list[str]()
    for step in range(model.steps):
        names = backward if step else forward
        for variable, choice in model.run_in(step):
            if ones[variable]:
                names += [model.line.problem.op_names[op] for op in choice.ops]
    return Program((tuple(forward), tuple(backward)))


@dataclass(frozen=True)
class _Choice:
    """One implementation of an op: some ops in a row."""

    ops: tuple[int, ...]
    reads: frozenset[int]
    """Storages it needs that it does not make."""
    seconds: float


@dataclass(frozen=True)
class _Moment:
    """One op of an implementation as it runs."""

    reads: frozenset[int]
    """Of what the implementation needs, what this op or a later one reads."""
    inside: tuple[int, ...]
    """Storages that it made so far and that are still there."""
    workspace: int


class _Line:
    """The step as MONeT sees it: forward ops and backward ops, each in a fixed order, each with its implementations."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        graph = problem.graph
        ran = simulate(graph, unplanned(graph)).program
        self.forward, self.backward = ([problem.op_index[n] for n in s] for s in ran.steps)
        self.place = dict.fromkeys(problem.arrives[_FORWARD].tolist(), -1)
        """The forward storages, by the place of their op; what arrives comes before them all."""
        for place, op in enumerate(self.forward):
            self.place |= dict.fromkeys(problem.makes[op].tolist(), place)
        self.gradients = dict.fromkeys(problem.arrives[_BACKWARD].tolist(), 0)
        """The backward ones, by the step they are made in."""
        for step, op in enumerate(self.backward, 1):
            self.gradients |= dict.fromkeys(problem.makes[op].tolist(), step)
        self.choices = {op: tuple(self._choices(op)) for op in (*self.forward, *self.backward)}

    def _choices(self, op: int) -> Iterator[_Choice]:
        for way in self.problem.ways[op].tolist():
            ops = self._with_copies(self.problem.parts[way].tolist())
            made = {s for o in ops for s in self.problem.makes[o].tolist()}
            reads = {s for o in ops for s in self.problem.reads[o].tolist()} - made
            if reads <= self.place.keys() | self.gradients.keys():
                seconds = float(self.problem.seconds[list(ops)].sum())
                yield _Choice(ops, frozenset(reads), seconds)

    def _with_copies(self, parts: list[int]) -> tuple[int, ...]:
        """These ops, each after those that make the copies only it and its like read."""
        found: list[int] = []
        for part in parts:
            for storage in self.problem.reads[part].tolist():
                makers = self.problem.makers[storage].tolist()
                captured = storage in self.place or storage in self.gradients
                if not captured and makers and makers[0] not in found:
                    found += self._with_copies(makers[:1])
            found.append(part)
        return tuple(dict.fromkeys(found))

    def moments(self, choice: _Choice, outputs: Iterable[int]) -> Iterator[_Moment]:
        """`outputs` are those that somebody else reads."""
        reads = [set(self.problem.reads[op].tolist()) for op in choice.ops]
        made: set[int] = set()
        for place, op in enumerate(choice.ops):
            later = set().union(*reads[place:])
            here = set(self.problem.makes[op].tolist())
            inside = here | (made & (later | set(outputs)))
            made |= here
            yield _Moment(
                choice.reads & later, tuple(sorted(inside)), int(self.problem.workspace[op])
            )

    @cached_property
    def last_step(self) -> dict[int, int]:
        """For each gradient the last step that may read it; one beyond them all if the caller gets it."""
        found = dict.fromkeys(self.gradients, 0)
        for step, op in enumerate(self.backward, 1):
            for choice in self.choices[op]:
                found.update({s: step for s in choice.reads if s in found})
        found.update({s: len(self.backward) + 1 for s in self.returned(_BACKWARD) if s in found})
        return found

    @cached_property
    def last_reader(self) -> dict[int, int]:
        """For each forward storage the place of the last forward op that may read it."""
        found: dict[int, int] = {}
        for place, op in enumerate(self.forward):
            found |= {s: place for choice in self.choices[op] for s in choice.reads}
        return found

    def returned(self, segment: int) -> list[int]:
        graph = self.problem.graph
        found = (graph.storage(r.value) for r in graph.required if r.segment == segment)
        return [self.problem.storage_index[s] for s in found if s in self.problem.storage_index]

    def held(self) -> set[int]:
        """Forward storages in the caller's hands during backward."""
        graph, index = self.problem.graph, self.problem.storage_index
        found = {
            graph.storage(r.value)
            for r in graph.required
            if r.segment == _FORWARD and r.until >= _BACKWARD
        }
        return {index[s] for s in found if s in index and index[s] in self.place}

    def may_keep(self, storage: int) -> bool:
        value = self.problem.graph.value[self.problem.storage_names[storage]]
        return value.keep or storage in self.held()


class _Model:
    def __init__(self, line: _Line, budget: int) -> None:
        self.line, problem = line, line.problem
        sizes = [*problem.bytes.tolist(), *problem.workspace.tolist()]
        self.bytes = Bytes(sizes, budget - problem.base_bytes)
        self.size = [self.bytes(size) for size in problem.bytes.tolist()]
        self.steps = len(line.backward) + 1
        self.program = ZeroOne("MONeT")
        self.computes: dict[tuple[int, int, _Choice], int] = {}
        self.chosen: dict[tuple[int, _Choice], int] = {}
        self.keeps: dict[tuple[int, int], int] = {}
        self.holds: dict[tuple[int, int], int] = {}
        """Storages that are there when a sweep is over: kept on entry to the next step, or read by this one's backward op."""
        for step in range(self.steps):
            self.declare(step)
        for storage in line.place:
            self.keeps[self.steps, storage] = (
                ONE if storage in line.returned(_BACKWARD) or storage in line.held() else ZERO
            )
        for step in range(self.steps):
            self.link(step)
            self.weigh_sweep(step)
            self.weigh_backward(step)
        self.weigh_arrivals()

    def declare(self, step: int) -> None:
        line, variable = self.line, self.program.variable
        for op in line.forward:
            for choice in line.choices[op]:
                if self.may_compute(step, op, choice):
                    self.computes[step, op, choice] = variable()
        for storage in line.place:
            if step and storage in line.held():
                self.keeps[step, storage] = ONE
            elif step > 1 or (step == 1 and line.may_keep(storage)):
                self.keeps[step, storage] = variable()
            self.holds[step, storage] = variable(whole=False)
        if step:
            for choice in line.choices[line.backward[step - 1]]:
                self.chosen[step, choice] = variable()

    def may_compute(self, step: int, op: int, choice: _Choice) -> bool:
        again = self.line.problem.again
        if step:
            return all(again[o, _BACKWARD] for o in choice.ops)
        return choice.ops == (op,) or all(again[o, _FORWARD] for o in choice.ops)

    def kept(self, step: int, storage: int) -> int:
        return self.keeps.get((step, storage), ZERO)

    def computed(self, step: int, op: int) -> list[int]:
        found = (self.computes.get((step, op, c)) for c in self.line.choices[op])
        return [variable for variable in found if variable is not None]

    def run_in(self, step: int) -> Iterator[tuple[int, _Choice]]:
        """The implementations that may run in a step, in their order, with their variables."""
        for op in self.line.forward:
            for choice in self.line.choices[op]:
                if (step, op, choice) in self.computes:
                    yield self.computes[step, op, choice], choice
        if step:
            for choice in self.line.choices[self.line.backward[step - 1]]:
                yield self.chosen[step, choice], choice

    def costs(self) -> Terms:
        return [(v, c.seconds) for step in range(self.steps) for v, c in self.run_in(step)]

    def available(self, step: int, storage: int) -> Terms:
        place = self.line.place[storage]
        made = (
            [ZERO if step else ONE] if place < 0 else self.computed(step, self.line.forward[place])
        )
        return [(v, -1.0) for v in (*made, self.kept(step, storage))]

    def link(self, step: int) -> None:
        """What is read is there; what is kept was there."""
        line, program = self.line, self.program
        for op in line.forward:
            terms: Terms = [(v, 1.0) for v in self.computed(step, op)]
            if step:
                program.at_most(terms, 1.0)
            else:
                program.exactly(terms, 1.0)
        for variable, choice in self.run_in(step):
            for storage in choice.reads & line.place.keys():
                program.at_most([(variable, 1.0), *self.available(step, storage)])
        for storage in line.place:
            hold = self.holds[step, storage]
            program.at_most([(self.kept(step + 1, storage), 1.0), (hold, -1.0)])
            program.at_most([(hold, 1.0), *self.available(step, storage)])
            read: Terms = [(v, 1.0) for v, c in self.backward_choices(step) if storage in c.reads]
            program.at_most([*read, (hold, -1.0)])
            if not step and storage in line.returned(_FORWARD):
                program.at_most([(hold, -1.0)], -1.0)
        if step:
            program.exactly([(v, 1.0) for v, _ in self.backward_choices(step)], 1.0)

    def backward_choices(self, step: int) -> list[tuple[int, _Choice]]:
        return [(v, c) for (s, c), v in self.chosen.items() if s == step]

    def weigh_sweep(self, step: int) -> None:
        line = self.line
        waiting = self.total(self.alive(step))
        for place, op in enumerate(line.forward):
            flowing = {s for s, at in line.place.items() if at < place < line.last_reader.get(s, 0)}
            for choice in line.choices[op]:
                if (step, op, choice) not in self.computes:
                    continue
                variable = self.computes[step, op, choice]
                for moment in line.moments(choice, line.problem.makes[op].tolist()):
                    own = flowing | moment.reads
                    rest: Terms = [
                        (self.kept(step, s) if at > place else self.holds[step, s], self.size[s])
                        for s, at in line.place.items()
                        if at != place and s not in own
                    ]
                    self.program.within_peak(
                        [(variable, waiting + self.bytes_of(own, moment)), *rest]
                    )

    def weigh_backward(self, step: int) -> None:
        line = self.line
        for variable, choice in self.backward_choices(step):
            outputs = line.problem.makes[line.backward[step - 1]].tolist()
            lasting = {s for s in outputs if line.last_step[s] > step}
            waiting = {s for s in self.alive(step) if line.last_step[s] > step}
            for moment in line.moments(choice, lasting):
                own = moment.reads | waiting
                rest: Terms = [
                    (self.kept(step + 1, s), self.size[s]) for s in line.place if s not in own
                ]
                self.program.within_peak([(variable, self.bytes_of(own, moment)), *rest])

    def weigh_arrivals(self) -> None:
        kept: Terms = [(self.kept(1, s), self.size[s]) for s in self.line.place]
        arriving = self.total(self.line.problem.arrives[_BACKWARD].tolist())
        self.program.within_peak([(ONE, arriving), *kept])

    def alive(self, step: int) -> set[int]:
        """Gradients that are there before a step's backward op runs."""
        last = self.line.last_step
        return {s for s, made in self.line.gradients.items() if made < step <= last[s]}

    def bytes_of(self, own: Iterable[int], moment: _Moment) -> int:
        return self.total(own) + self.total(moment.inside) + self.bytes(moment.workspace)

    def total(self, storages: Iterable[int]) -> int:
        return sum(self.size[s] for s in storages)
