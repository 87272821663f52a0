"""Does a choice of what to keep become a program that keeps it, remakes the rest and nothing twice?"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import GraphError
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.ir.program import unplanned
from lowtide.ir.storages import fold
from lowtide.sim.memory import simulate
from lowtide.solve.baselines import QUICK_BASELINES
from lowtide.solve.baselines.keep_all import keep_all
from lowtide.solve.baselines.keeping import fastest_fitting, program_keeping
from tests.solve.builders import (
    ADD,
    BACKWARD,
    FORWARD,
    MM,
    SIN,
    TANH,
    Step,
    chain,
    lstm,
    resnet,
    run,
)

# The builder itself: a baseline that looks right on a wrong graph proves nothing.


def test_the_builder_writes_the_backward_part() -> None:
    step = Step()
    x, w = step.batch("x", 8), step.parameter("w", 4)
    y = step.op("y", MM, [x, w], 8, 5, saves=[x, w])
    z = step.op("z", ADD, [y, y], 8, saves=[])
    out = step.op("out", TANH, [step.view("v", z)], 8)
    both = step.op("both", ADD, [out, y], 8, saves=[])
    graph = step.graph(both)
    check_graph(graph)
    assert unplanned(graph).steps == (
        ("y", "z", "out", "both"),
        ("both.backward", "out.backward", "z.backward", "d.y.z.add", "y.backward"),
    )
    assert graph.op["out.backward"].inputs == ("d.out.both", "out")
    assert graph.op["y.backward"].outputs == ("d.w.y",)
    assert [r.value for r in graph.required] == ["both", "d.w.y"]
    assert simulate(graph, unplanned(graph)).seconds == 3 * (5 + 1 + 1 + 1) + 0.1


# Keeping and remaking.


def three_ops(**second: bool) -> Step:
    step = Step()
    a = step.op("a", SIN, [step.parameter("w", 10)], 10, 1)
    b = step.op("b", SIN, [a], 20, 2, **second)  # type: ignore[arg-type]
    step.op("c", SIN, [b], 30, 4)
    return step


def test_what_is_not_kept_is_remade_on_first_demand_with_all_it_needs() -> None:
    program = program_keeping(three_ops().graph(), set())
    backward = ("a", "b", "c", "c.backward", "b.backward", "a.backward")
    assert program.steps == (("a", "b", "c"), backward)


def test_kept_storages_are_not_remade_and_the_others_start_from_them() -> None:
    graph = three_ops().graph()
    program = program_keeping(graph, {"b"})
    backward = ("c", "c.backward", "b.backward", "a", "a.backward")
    assert program.steps[BACKWARD] == backward
    assert run(graph, program).kept[FORWARD] == {"b"}
    assert program_keeping(graph, lambda storage: storage == "b") == program


def test_keeping_everything_is_the_captured_program() -> None:
    for graph in (
        three_ops().graph(),
        lstm(4),
        resnet(1, stages=((2, 8, 4), (2, 16, 2)), image=16),
    ):
        assert program_keeping(graph, lambda storage: True) == unplanned(graph)


def test_storages_that_cannot_be_remade_are_kept() -> None:
    graph = three_ops(rerun=False).graph()
    assert run(graph, program_keeping(graph, set())).kept[FORWARD] == {"b"}
    effect = three_ops(effect=True).graph()
    assert run(effect, program_keeping(effect, set())).kept[FORWARD] == {"b"}


def test_storages_made_from_what_is_gone_are_kept() -> None:
    step = Step()
    a = step.op("a", SIN, [step.batch("mutated", 10, until=FORWARD), step.parameter("w", 1)], 10)
    step.op("c", SIN, [step.op("b", SIN, [a], 10)], 10)
    graph = step.graph()
    assert run(graph, program_keeping(graph, set())).kept[FORWARD] == {"a"}


def test_marked_values_are_never_kept() -> None:
    graph = three_ops(keep=False).graph()
    for program in (program_keeping(graph, lambda storage: True), keep_all(graph, 0)):
        assert run(graph, program).kept[FORWARD] == {"a", "c"}
        assert program.counts["b"] == 2


def test_a_marked_value_that_cannot_be_remade_is_an_error() -> None:
    graph = three_ops(keep=False, rerun=False).graph()
    with pytest.raises(GraphError, match=r"'b' is read in backward, is marked never to be kept"):
        program_keeping(graph, set())


def test_a_marked_value_made_from_what_is_gone_is_an_error() -> None:
    step = Step()
    inputs = [step.batch("mutated", 10, until=FORWARD), step.parameter("w", 1)]
    graph = step.graph(step.op("b", SIN, [step.op("a", SIN, inputs, 10, keep=False)], 10))
    with pytest.raises(GraphError, match=r"'a' is read in backward, is marked never to be kept"):
        program_keeping(graph, set())


def test_keeping_a_value_does_not_bring_it_about_before_it_is_made() -> None:
    """`b` comes back from a gradient, which is "kept" but does not exist yet when `b` is wanted."""
    step = Step()
    b = step.op("b", SIN, [step.parameter("w", 10)], 10, rerun=False)
    step.op("c", SIN, [b], 10, saves=[b])
    step.maker("gradient", "test", ["w"], ["d.b.c"], segment=BACKWARD)
    step.maker("b.again", "test", ["d.b.c"], ["b"], segment=BACKWARD)
    graph = step.graph()
    program = program_keeping(graph, {"d.b.c"})
    run(graph, program)
    assert program.steps[BACKWARD] == ("gradient", "b.again", "c.backward", "b.backward")


def test_a_random_op_is_replayed_from_its_generator() -> None:
    step = Step()
    a = step.op("a", SIN, [step.parameter("w", 10)], 1000)
    state = step.op("drop.generator", "lowtide.generator_state", [], 5, rerun=False)
    step.op(
        "drop",
        "aten.native_dropout.default",
        [a],
        1000,
        saves=["mask"],
        extra={"mask": 250},
        effect=True,
    )
    step.op("c", SIN, ["drop"], 1000, saves=["drop"])
    step.maker("drop.replay", "replay", [a, state], ["drop", "mask"], of="drop", seconds=1.0)
    graph = step.graph("c")
    program = program_keeping(graph, set())
    assert run(graph, program).kept[FORWARD] == {"drop.generator"}
    assert program.steps[BACKWARD][:4] == ("a", "drop.replay", "c.backward", "drop.backward")


def test_another_maker_runs_in_the_place_of_the_op_it_stands_in_for() -> None:
    step = Step()
    w = step.parameter("w", 10)
    state = step.op("drop.generator", "lowtide.generator_state", [], 5, rerun=False)
    drop = step.op("drop", "aten.bernoulli.default", [w], 10, saves=[], effect=True)
    later = step.op("later", SIN, [w], 10)
    both = step.op("both", ADD, [drop, later], 10, saves=[drop, later])
    step.maker("drop.replay", "replay", [w, state], ["drop"], of="drop")
    program = program_keeping(step.graph(both), set())
    assert program.steps[BACKWARD][:3] == ("drop.replay", "later", "both.backward")


def test_the_captured_maker_comes_first() -> None:
    step = three_ops()
    step.maker("B.another", "invert", ["w"], ["b"], of="b")
    program = program_keeping(step.graph(), set())
    assert "B.another" not in program.counts
    assert program.counts["b"] == 2


def test_makers_that_need_each_other_do_not_remake_anything() -> None:
    """`a` may not run again; its inversion needs `b`, which needs `a`. Nor is the captured maker of `b` left for a decoder."""
    step = three_ops()
    first = step.forward[0]
    step.forward[0] = replace(first, op=replace(first.op, rerun=False))
    step.maker("a.invert", "invert", ["b"], ["a"])
    step.fresh("b.packed", 1)
    step.maker("b.encode", "encode", ["b"], ["b.packed"])
    step.maker("b.decode", "encode", ["b.packed"], ["b"])
    graph = step.graph()
    program = program_keeping(graph, set())
    assert run(graph, program).kept[FORWARD] == {"a"}
    assert not program.counts.keys() & {"a.invert", "b.encode", "b.decode"}


def test_an_inversion_serves_where_the_captured_op_may_not() -> None:
    step = Step()
    a = step.op("a", SIN, [step.parameter("w", 10)], 10, rerun=False)
    b = step.op("b", SIN, [a], 10, rerun=False)
    step.op("c", SIN, [b], 10)
    step.maker("a.invert", "invert", ["b"], ["a"])
    graph = step.graph()
    program = program_keeping(graph, set())
    assert run(graph, program).kept[FORWARD] == {"b"}
    assert program.counts["a.invert"] == 1


def test_pieces_do_not_run_each_other() -> None:
    """Two graphs, one inside the other in time: `b` is made in one and read in the other."""
    names = {"x": 1, "a": 10, "b": 10, "c": 10, "t": 1, "db": 1, "dx": 1}
    graph = Graph(
        values=tuple(Value(n, size, n) for n, size in names.items()),
        ops=(
            Op("a", SIN, ("x",), ("a",), 0),
            Op("b", SIN, ("a",), ("b",), 0),
            Op("c", SIN, ("b",), ("c",), 1),
            Op("back1", SIN, ("t", "b", "c"), ("db",), 2),
            Op("back0", SIN, ("db", "a", "b"), ("dx",), 3),
        ),
        segments=(Segment("f0", 0), Segment("f1", 1), Segment("b1", 1), Segment("b0", 0)),
        outside=(Outside("x"), Outside("t", since=2, owned=False)),
        required=(Required("dx", 3),),
    )
    program = program_keeping(graph, set())
    run(graph, program)
    assert program.steps == (("a", "b"), ("c",), ("c", "back1"), ("a", "b", "back0"))


def test_a_dead_op_of_backward_is_no_reason_to_remake() -> None:
    """Nobody reads what `dead` makes; it comes first and would remake `b` long before it is wanted."""
    graph = three_ops().graph()
    dead = Op("dead", SIN, ("tangent.c", "b"), ("nothing",), BACKWARD)
    values = (*graph.values, Value("nothing", 1, "nothing"))
    graph = replace(graph, values=values, ops=(*graph.ops[:3], dead, *graph.ops[3:]))
    backward = program_keeping(graph, {"a", "c"}).steps[BACKWARD]
    assert backward == ("c.backward", "b", "b.backward", "a.backward")


def test_what_the_caller_holds_is_read_and_not_remade() -> None:
    graph = three_ops().graph()
    held = tuple(Required(r.value, r.segment) for r in graph.required)
    assert program_keeping(replace(graph, required=held), set()).counts["c"] == 1


@dataclass(frozen=True)
class Case:
    """A random step and a random choice of what to keep."""

    graph: Graph
    keep: frozenset[str]
    stuck: frozenset[str]
    """What cannot be remade: made by an op that runs once, or from what is gone after forward."""


KINDS = ["plain"] * 5 + ["view", "gone", "once", "random", "marked"]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    step = Step()
    values = [step.parameter("w", 3), step.batch("x", 2)]
    step.batch("gone", 2, until=FORWARD)
    stuck: set[str] = set()
    for i in range(draw(st.integers(2, 12))):
        name, kind = f"f{i}", draw(st.sampled_from(KINDS))
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        if kind == "view" and inputs[0] not in ("w", "x"):
            values.append(step.view(name, inputs[0]))
            continue
        if kind == "random":
            step.op(f"{name}.state", "lowtide.generator_state", [], 1, 0, rerun=False)
        step.op(
            name,
            draw(st.sampled_from([SIN, MM, TANH])),
            [*inputs, "gone"] if kind == "gone" else inputs,
            draw(st.integers(0, 9)),
            draw(st.integers(0, 5)),
            saves=draw(st.lists(st.sampled_from([*inputs, name]), max_size=3, unique=True)),
            extra={f"{name}.more": 1} if draw(st.booleans()) else None,
            rerun=kind != "once",
            effect=kind == "random",
            keep=kind != "marked",
        )
        made = step.forward[-1].op.outputs
        if kind == "random":
            step.maker(f"{name}.replay", "replay", [*inputs, f"{name}.state"], made, of=name)
        if kind in ("once", "gone"):
            stuck.update(made)
        values.extend(made)
    graph = step.graph(step.op("end", SIN, [values[-1], "w"], 1))
    storages = [v.name for v in graph.values if v.kind is Kind.ACTIVATION and not v.is_view]
    return Case(graph, frozenset(draw(st.sets(st.sampled_from(storages)))), frozenset(stuck))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_any_choice_gives_a_program_that_keeps_it_and_nothing_else(case: Case) -> None:
    graph, folded = case.graph, fold(case.graph)
    program = program_keeping(graph, case.keep)
    kept = run(graph, program).kept[FORWARD]
    states = {v for v in graph.value if v.endswith(".state")}
    assert kept <= case.keep | case.stuck | states
    assert all(program.steps[BACKWARD].count(name) <= 1 for name in program.counts)
    again = {s for n in program.steps[BACKWARD] for s in folded.makes[n]}
    ran = simulate(graph, unplanned(graph)).program
    wanted = {s for n in ran.steps[BACKWARD] for s in folded.reads[n]}
    kept_by_choice = {s for s in wanted & case.keep if graph.value[s].keep}
    assert kept_by_choice <= kept | again


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 200))
def test_every_baseline_gives_a_program(case: Case, budget: int) -> None:
    for baseline in QUICK_BASELINES.values():
        run(case.graph, baseline(case.graph, budget))


# Choosing by the simulator.


def test_the_fastest_that_fits_else_the_smallest() -> None:
    graph = chain(20)
    choices = [program_keeping(graph, {f"f{i}" for i in range(0, 20, n)}) for n in (1, 2, 5, 20)]
    timed = [simulate(graph, c) for c in choices]
    assert timed[0].peak > timed[1].peak > timed[2].peak
    assert fastest_fitting(graph, timed[0].peak, choices) == choices[0]
    assert fastest_fitting(graph, timed[0].peak - 1, choices) == choices[1]
    assert fastest_fitting(graph, timed[1].peak - 1, choices) == choices[2]
    assert fastest_fitting(graph, 1, choices) == choices[min(range(4), key=lambda i: timed[i].peak)]


# Size.


def test_eleven_thousand_ops_take_less_than_a_second() -> None:
    graph = chain(5500)
    start = time.process_time()
    program = program_keeping(graph, {f"f{i}" for i in range(0, 5500, 74)})
    assert time.process_time() - start < 1.0
    check_program(graph, program)
    assert simulate(graph, program).peak < 200 * 100
