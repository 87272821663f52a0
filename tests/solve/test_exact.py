"""Is the exact solver exact? Against every legal program there is, tried one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lowtide.errors import GraphError
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Op, Outside, Required, Segment, Value, home_segment
from lowtide.ir.program import Program, unplanned
from lowtide.sim.check import check_kept
from lowtide.sim.memory import simulate
from lowtide.solve.bound import lower_bound
from lowtide.solve.exact import Exact, exact
from lowtide.solve.planner import solve
from lowtide.solve.problem import make_problem
from lowtide.solve.result import Status
from tests.solve.builders import ADD, MM, SIN, TANH, Step, chain, run
from tests.strategies import graphs


class Every:
    """Every program of up to so many ops, by what the checks and the simulator say of it."""

    def __init__(self, graph: Graph, longest: int, most: int = 1000) -> None:
        self.graph, self.longest = graph, longest
        self.ops = [o for o in graph.ops if not graph.is_view(o)]
        self.fastest: dict[int, float] = {}
        """By peak."""
        self.complete = True
        for count, program in enumerate(self.programs()):
            if count == most:
                self.complete = False
                break
            self.judge(program)

    def judge(self, program: Program) -> None:
        try:
            check_program(self.graph, program)
            timeline = simulate(self.graph, program)
            check_kept(timeline)
        except GraphError:
            return
        before = self.fastest.get(timeline.peak, math.inf)
        self.fastest[timeline.peak] = min(before, timeline.seconds)

    def programs(self) -> Iterator[Program]:
        return self.grow([[] for _ in self.graph.segments], 0, set())

    def grow(self, steps: list[list[str]], segment: int, made: set[str]) -> Iterator[Program]:
        """Leaves out only what reads a value that nobody made, what runs where it may not, and what ran before for nothing."""
        if segment == len(steps):
            yield Program(tuple(tuple(s) for s in steps))
            return
        yield from self.grow(steps, segment + 1, made)
        if sum(map(len, steps)) == self.longest:
            return
        for op in self.ops:
            if self.may_run(op, steps, segment) and self.reads(op, made):
                steps[segment].append(op.name)
                yield from self.grow(steps, segment, made | {*op.outputs})
                steps[segment].pop()

    def may_run(self, op: Op, steps: list[list[str]], segment: int) -> bool:
        if not home_segment(self.graph, op, segment):
            return False
        if not any(op.name in names for names in steps):
            return True
        if not op.rerun or op.name not in steps[segment]:
            return op.rerun
        latest = len(steps[segment]) - steps[segment][::-1].index(op.name)
        since = [self.graph.op[name] for name in steps[segment][latest:]]
        made = {self.graph.storage(v) for v in op.outputs}
        return any(self.graph.storage(v) in made for o in since for v in o.inputs)

    def reads(self, op: Op, made: set[str]) -> bool:
        storages = {self.graph.storage(v) for v in op.inputs}
        return all(s in made or s in self.graph.exists_outside for s in storages)

    def within(self, budget: int) -> float:
        return min((s for peak, s in self.fastest.items() if peak <= budget), default=math.inf)

    def budgets(self) -> list[int]:
        """Where the answer changes, and one byte below."""
        found, best = [], math.inf
        for peak in sorted(self.fastest):
            if self.fastest[peak] < best:
                best = self.fastest[peak]
                found += [peak - 1, peak]
        return found


def assert_exact(graph: Graph, every: Every, budget: int) -> None:
    answer = exact(graph, budget)
    if not answer.proved:
        assert any(op.over for op in graph.ops)
        assert answer.program is None
        assert answer.bound <= every.within(budget)
        return
    if answer.program is None:
        assert every.within(budget) == answer.bound == math.inf
        return
    timeline = run(graph, answer.program)
    assert timeline.peak <= budget
    assert timeline.seconds == answer.seconds == answer.bound
    if sum(map(len, answer.program.steps)) <= every.longest:
        assert answer.seconds == every.within(budget)
    else:
        assert answer.seconds <= every.within(budget)


def assert_exact_everywhere(graph: Graph, longest: int) -> None:
    every = Every(graph, longest, most=10_000)
    assert every.complete
    assert every.fastest
    for budget in every.budgets():
        assert_exact(graph, every, budget)


@settings(max_examples=40, deadline=None)
@given(graphs(max_ops=4))
def test_no_legal_program_of_a_small_graph_is_faster(graph: Graph) -> None:
    every = Every(graph, longest=len(graph.captured) + 2)
    assume(every.complete)
    for budget in every.budgets():
        assert_exact(graph, every, budget)


@settings(max_examples=40, deadline=None)
@given(graphs(max_ops=5, rules=False))
def test_nor_of_one_without_rules(graph: Graph) -> None:
    every = Every(graph, longest=len(graph.captured) + 2)
    assume(every.complete)
    for budget in every.budgets():
        assert_exact(graph, every, budget)


def in_three(graph: Graph, cut: int) -> Graph:
    """The backward part cut in two segments, of one piece with the forward; what is required early is held for a while."""
    late = {o.name for o in [o for o in graph.captured if o.segment == 1][cut:]}
    ops = tuple(replace(o, segment=2) if {o.name, o.of} & late else o for o in graph.ops)
    made = {v: o.segment for o in ops if not o.rule for v in o.outputs}
    required = tuple(
        replace(r, segment=max(r.segment, made.get(r.value, 0)), until=r.until + (r.segment == 1))
        for r in graph.required
    )
    segments = (Segment("forward"), Segment("backward"), Segment("more"))
    return replace(graph, ops=ops, required=required, segments=segments)


@settings(max_examples=40, deadline=None)
@given(graphs(max_ops=4), st.integers(0, 2))
def test_nor_of_one_with_three_segments(graph: Graph, cut: int) -> None:
    graph = in_three(graph, cut)
    try:
        check_graph(graph)
    except GraphError:
        assume(False)
    every = Every(graph, longest=len(graph.captured) + 2)
    assume(every.complete)
    for budget in every.budgets():
        assert_exact(graph, every, budget)


def tight_step(rng: Random) -> Graph:
    """Forward ops with large workspaces, one or two backward ops that read many of their outputs, maybe an encoding: what to
    keep, to make again or to encode is a matter of bytes and seconds in most of them."""
    values = [Value("w", 1, "w"), Value("t", rng.randint(0, 9), "t")]
    ops: list[Op] = []
    made: list[str] = []
    for i in range(rng.choice((2, 3))):
        names = [f"x{i}"] if rng.random() < 0.7 else [f"x{i}", f"y{i}"]
        values += [Value(n, rng.randint(1, 60), n) for n in names]
        read = (made[-1],) if made and rng.random() < 0.8 else (rng.choice(["w", *made]),)
        seconds, workspace = rng.choice((0.25, 0.5, 1.0, 2.0)), rng.choice((0, 90, 150)) if i else 0
        ops.append(Op(f"f{i}", "aten.any", read, tuple(names), 0, seconds, workspace))
        made += names
    if rng.random() < 0.4:
        of = rng.choice(ops)
        values.append(Value("small", 5, "small"))
        ops.append(Op("pack", "pack", of.outputs[:1], ("small",), 0, 0.25, rule="pack", of=of.name))
        ops.append(Op("unpack", "unpack", ("small",), of.outputs[:1], 0, 0.25, rule="pack"))
    before = "t"
    for i in range(1 if len(ops) > 2 else 2):
        values.append(Value(f"d{i}", rng.randint(1, 40), f"d{i}"))
        read = (before, "x0") if i else (before, *rng.sample(made, 2))
        ops.append(Op(f"b{i}", "aten.any", read, (f"d{i}",), 1, 0.5, rng.choice((0, 0, 60))))
        before = f"d{i}"
    required = (Required(made[-1], 0, rng.choice((0, 1))), Required(before, 1))
    outside = (Outside("w"), Outside("t", since=1, owned=False))
    return Graph(tuple(values), tuple(ops), outside=outside, required=required)


@pytest.mark.parametrize("seed", range(4))
def test_nor_where_bytes_can_be_bought_with_seconds(seed: int) -> None:
    rng, traded = Random(seed), 0
    while traded < 5:
        graph = tight_step(rng)
        check_graph(graph)
        every = Every(graph, longest=6, most=2000)
        if every.complete and len(every.budgets()) > 2:
            traded += 1
            for budget in every.budgets():
                assert_exact(graph, every, budget)


# Steps with one thing in them that is easy to get wrong.


def test_a_short_chain() -> None:
    assert_exact_everywhere(chain(2), longest=6)


def test_a_cheap_op_between_dear_ones() -> None:
    step = Step()
    w = step.parameter("w", 1)
    a = step.op("a", MM, [w], 50, 9.0)
    b = step.op("b", TANH, [a], 100, 0.5, workspace=30)
    assert_exact_everywhere(step.graph(step.op("c", MM, [b], 1, 9.0, saves=[b])), longest=7)


def test_an_encoding_is_made_late_and_used() -> None:
    step = Step()
    w = step.parameter("w", 0)
    a = step.op("a", MM, [w], 100, 9.0)
    b = step.op("b", MM, [a], 1, 9.0, saves=[], backward_seconds=1.0)
    small = step.fresh("small", 10)
    step.maker("pack", "encode", [a], [small], seconds=0.25, of="a")
    step.maker("unpack", "encode", [small], [a], seconds=0.5)
    graph = step.graph(b)
    big = replace(graph.op["b.backward"], workspace=80)
    graph = graph.with_ops(big if o.name == big.name else o for o in graph.ops)
    assert_exact_everywhere(graph, longest=6)
    whole = simulate(graph, unplanned(graph))
    answer = exact(graph, whole.peak - 1)
    assert answer.program is not None
    assert {"pack", "unpack"} <= set(answer.program.counts)


def test_a_form_whose_copy_nobody_else_needs_is_found() -> None:
    """Both ways to make `d` depend on `b`, but by no op that both share: only a dearer round finds `b` worth making."""
    values = tuple(Value(n, size, n) for n, size in (("t", 0), ("b", 1), ("c", 1), ("d", 0)))
    ops = (
        Op("late", "aten.any", ("t",), ("b",), 1, 0.25, rerun=False),
        Op("wide", "aten.any", ("b",), ("d",), 1, workspace=1),
        Op("copying", "aten.any", ("b",), ("c",), 1, rule="form", of="wide"),
        Op("lean", "aten.any", ("c",), ("d",), 1, rule="form", of="wide"),
    )
    outside = (Outside("t", since=1, owned=False),)
    graph = Graph(values=values, ops=ops, outside=outside, required=(Required("d", 1),))
    check_graph(graph)
    assert_exact_everywhere(graph, longest=5)


def three_segments(until: int) -> Graph:
    """Both outputs of `both` are read at the end. The caller holds one until `until`; to have the other again is to have both."""
    values = [Value(n, size, n) for n, size in (("x", 5), ("y", 70), ("z", 70), ("t", 90))]
    values += [Value(n, 1, n) for n in ("u", "d")]
    ops = (
        Op("both", "aten.split", ("x",), ("y", "z"), 0, 1.0),
        Op("early", "aten.sum", ("y", "z"), ("u",), 0, 1.0),
        Op("big", "aten.big", ("u",), ("t",), 1, 1.0),
        Op("late", "aten.sum", ("y", "z", "t"), ("d",), 2, 1.0),
    )
    return Graph(
        values=tuple(values),
        ops=ops,
        segments=(Segment("forward"), Segment("between"), Segment("backward")),
        outside=(Outside("x"),),
        required=(Required("y", 0, until), Required("t", 1, 1), Required("d", 2)),
    )


@pytest.mark.parametrize("until", [0, 1, 2])
def test_a_copy_in_the_callers_hands_is_beside_a_new_one(until: int) -> None:
    graph = three_segments(until)
    check_graph(graph)
    assert_exact_everywhere(graph, longest=6)


def test_a_value_marked_so_is_not_kept() -> None:
    step = Step()
    w = step.parameter("w", 1)
    a = step.op("a", TANH, [w], 50, keep=False)
    graph = step.graph(step.op("b", SIN, [a], 20))
    assert_exact_everywhere(graph, longest=6)
    answer = exact(graph, 10**6)
    assert answer.program is not None
    assert answer.program.counts["a"] == 2


def test_effects_run_once_in_order_and_others_around_them() -> None:
    step = Step()
    w = step.parameter("w", 1)
    a = step.op("a", TANH, [w], 50)
    b = step.op("b", "aten.bernoulli", [a], 60, rerun=False)
    step.op("c", "aten.copy_", [a], 5, effect=True)
    step.op("d", "aten.copy_", [w], 70, effect=True)
    assert_exact_everywhere(step.graph(b), longest=8)


def test_what_is_read_only_for_a_while_is_not_read_later() -> None:
    step = Step()
    w, x = step.parameter("w", 1), step.batch("x", 30, until=0)
    a = step.op("a", ADD, [w, x], 50, saves=[])
    graph = step.graph(step.op("b", TANH, [step.op("c", SIN, [a], 40, saves=[a])], 10))
    assert_exact_everywhere(graph, longest=7)
    answer = exact(graph, 10**6)
    assert answer.program is not None
    assert answer.program.counts["a"] == 1


def test_no_answer_where_what_comes_for_a_while_can_be_made_too() -> None:
    graph = replace(three_segments(0), outside=(Outside("x", until=0, owned=False),))
    again = Op("again", "aten.again", ("u",), ("x",), 0, 1.0, rule="invert")
    graph = graph.with_ops((*graph.ops, again))
    check_graph(graph)
    assert exact(graph, 10**6) == Exact(None, math.inf, 0.0, False, 0)


# What it promises besides.


@settings(max_examples=25, deadline=None)
@given(graphs(max_ops=10, fleeting=False), st.floats(0.5, 1.0))
def test_never_below_the_bound_nor_slower_than_the_search(graph: Graph, share: float) -> None:
    budget = int(simulate(graph, unplanned(graph)).peak * share)
    answer = exact(graph, budget, nodes=20_000)
    other = solve(graph, budget, solver="search", seconds=0.1)
    if answer.proved:
        assert answer.seconds >= lower_bound(make_problem(graph), budget) * (1 - 1e-9)
    if other.status is not Status.INFEASIBLE:
        assert answer.bound <= other.seconds * (1 + 1e-9)
        assert not answer.proved or answer.program is not None


@pytest.mark.parametrize("nodes", [1, 10, 100])
def test_cut_short_it_still_has_a_bound(nodes: int) -> None:
    graph = chain(6)
    budget = simulate(graph, unplanned(graph)).peak * 6 // 10
    best, cut = exact(graph, budget), exact(graph, budget, nodes=nodes)
    assert best.proved
    assert not cut.proved
    assert cut.program is None
    assert cut.nodes <= nodes
    assert 0 < cut.bound <= best.seconds


def test_out_of_time_it_still_has_a_bound() -> None:
    graph = chain(6)
    budget = simulate(graph, unplanned(graph)).peak * 6 // 10
    best, cut = exact(graph, budget), exact(graph, budget, patience=0.0)
    assert not cut.proved
    assert cut.nodes < best.nodes
    assert 0 < cut.bound <= best.seconds


def test_the_bound_grows_with_the_states_looked_at() -> None:
    graph = chain(8)
    budget = simulate(graph, unplanned(graph)).peak // 2
    bounds = [exact(graph, budget, nodes=nodes).bound for nodes in (1, 100, 400, 2000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[-1]


def test_only_what_is_faster_is_looked_for() -> None:
    graph = chain(5)
    budget = simulate(graph, unplanned(graph)).peak * 7 // 10
    best = exact(graph, budget)
    assert exact(graph, budget, faster_than=best.seconds + 0.5).program == best.program
    none = exact(graph, budget, faster_than=best.seconds)
    assert none.program is None
    assert none.proved
    assert none.bound == best.seconds
    free = replace(graph, ops=tuple(replace(o, seconds=0.0) for o in graph.ops))
    assert exact(free, budget).seconds == 0
    assert exact(free, budget, faster_than=0.0) == Exact(None, math.inf, 0.0, True, 0)


def test_the_same_answer_every_time() -> None:
    graph = chain(6)
    budget = simulate(graph, unplanned(graph)).peak * 6 // 10
    assert exact(graph, budget) == exact(graph, budget)


def test_thirty_storages_in_a_second_or_two() -> None:
    graph = skipping(5)
    budget = simulate(graph, unplanned(graph)).peak * 7 // 10
    answer = exact(graph, budget)
    assert answer.proved
    assert answer.program is not None
    assert run(graph, answer.program).peak <= budget


def skipping(blocks: int) -> Graph:
    """Residual blocks of one dear and one cheap op."""
    step = Step()
    x = step.op("in", MM, [step.parameter("w", 3)], 64, 4.0)
    for i in range(blocks):
        y = step.op(f"act{i}", TANH, [x], 64, 0.5)
        x = step.op(f"mix{i}", ADD, [y, x], 64 - 3 * i, 2.0, saves=[y])
    return step.graph(x)
