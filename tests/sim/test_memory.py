"""The simulator against a machine that really runs the program, and against answers worked out by hand."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import GraphError
from lowtide.ir.check import check_graph, check_program
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.ir.program import Program, unplanned
from lowtide.sim.memory import Timeline, simulate
from tests.sim.oracle import execute
from tests.strategies import graphs, programs


def agrees_with_the_oracle(graph: Graph, program: Program) -> None:
    check_graph(graph)
    check_program(graph, program)
    timeline, ran = simulate(graph, program), execute(graph, program)
    assert [(m.segment, m.op, m.during, m.after) for m in timeline.moments] == ran.moments
    assert timeline.base == ran.base
    assert list(timeline.arrivals) == ran.arrivals
    assert timeline.peak == ran.peak
    assert timeline.seconds == ran.seconds
    assert [timeline.alive(i) for i in range(len(ran.alive))] == ran.alive
    assert [set(k) for k in timeline.kept[:-1]] == ran.kept[:-1]
    assert [(s, n) for s, n in timeline.program] == [m[:2] for m in ran.moments]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_program_takes_what_running_it_takes(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    agrees_with_the_oracle(graph, data.draw(programs(graph)))


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=30))
def test_the_unplanned_step_takes_what_running_it_takes(graph: Graph) -> None:
    agrees_with_the_oracle(graph, unplanned(graph))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_really_runs_is_a_program_that_takes_the_same(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(programs(graph)))
    check_program(graph, timeline.program)
    assert simulate(graph, timeline.program) == timeline


def value(name: str, size: int, kind: Kind = Kind.ACTIVATION, storage: str = "") -> Value:
    return Value(name, 0 if storage else size, storage or name, kind)


def op(text: str, segment: int = 0, **more: object) -> Op:
    """`op("y z = f x w")`."""
    made, _, call = text.partition("=")
    name, *inputs = call.split()
    return Op(name, f"aten.{name}", tuple(inputs), tuple(made.split()), segment, **more)  # type: ignore[arg-type]


def net() -> Graph:
    """y = relu(view(mm(x, w))), then its backward."""
    return Graph(
        values=(
            value("x", 100, Kind.BATCH),
            value("w", 1000, Kind.PARAMETER),
            value("h", 10),
            value("hv", 0, storage="h"),
            value("y", 20),
            value("t", 20, Kind.GRADIENT),
            value("dh", 10, Kind.TEMPORARY),
            value("dw", 1000, Kind.GRADIENT),
        ),
        ops=(
            op("h = mm x w", seconds=1.0, workspace=7),
            op("hv = view h"),
            op("y = relu hv", seconds=0.5),
            op("dh = relu_backward t hv", 1, seconds=0.5),
            op("dw = mm_backward dh x", 1, seconds=2.0, workspace=3),
        ),
        outside=(Outside("x"), Outside("w"), Outside("t", 1, 1, owned=False)),
        required=(Required("y", 0), Required("dw", 1)),
        held={"optimizer state": 5000},
    )


def bytes_of(timeline: Timeline) -> list[tuple[str, int, int]]:
    return [(m.op, m.during - timeline.base, m.after - timeline.base) for m in timeline.moments]


def test_keeping_everything() -> None:
    timeline = simulate(net(), unplanned(net()))
    assert timeline.base == 6100
    assert bytes_of(timeline) == [
        ("mm", 17, 10),  # h and the workspace
        ("relu", 30, 30),  # h is kept for backward, the caller holds y
        ("relu_backward", 60, 30),  # h, y, t, dh; then h and t go
        ("mm_backward", 1033, 1020),  # y, dh, dw and the workspace; then dh goes
    ]
    assert timeline.arrivals == (6100, 6150)
    assert timeline.kept == (frozenset({"h", "y"}), frozenset())
    assert (timeline.peak, timeline.peak_moment, timeline.seconds) == (7133, 3, 4.0)
    assert timeline.alive(2) == {"dh": 10, "h": 10, "t": 20, "y": 20}


def test_recomputing() -> None:
    timeline = simulate(net(), Program((("mm", "relu"), ("mm", "relu_backward", "mm_backward"))))
    assert bytes_of(timeline) == [
        ("mm", 17, 10),
        ("relu", 30, 20),  # a view of h is read later, but from the second copy
        ("mm", 57, 50),  # y, t, h and the workspace
        ("relu_backward", 60, 30),
        ("mm_backward", 1033, 1020),
    ]
    assert timeline.kept[0] == {"y"}
    assert timeline.seconds == 5.0


def test_a_dead_op_does_not_run_nor_keep_its_inputs() -> None:
    plain = unplanned(net())
    padded = Program((plain.steps[0], (*plain.steps[1], "relu", "relu_backward")))
    assert simulate(net(), padded) == simulate(net(), plain)


def test_the_caller_keeps_its_copy_when_an_op_runs_again() -> None:
    graph = Graph(
        values=(value("x", 1), value("y", 10), value("z", 100), value("g", 1000)),
        ops=(op("y z = f x"), op("g = b y z", 1)),
        outside=(Outside("x"),),
        required=(Required("y", 0), Required("g", 1)),
    )
    timeline = simulate(graph, Program((("f",), ("f", "b"))))
    assert bytes_of(timeline) == [
        ("f", 110, 10),
        ("f", 120, 120),  # the caller's y, a new y, z
        ("b", 1120, 1010),
    ]
    assert timeline.alive(2) == {"g": 1000, "y": 20, "z": 100}
    assert timeline.kept[0] == {"y"}


def test_the_caller_lets_go() -> None:
    graph = Graph(
        values=(value("x", 1), value("y", 10), value("z", 100), value("g", 1000)),
        ops=(op("y = f x"), op("z = h x"), op("g = b z", 1)),
        outside=(Outside("x"),),
        required=(Required("y", 0, until=0), Required("g", 1)),
    )
    timeline = simulate(graph, unplanned(graph))
    assert bytes_of(timeline) == [("f", 10, 10), ("h", 110, 110), ("b", 1100, 1000)]
    assert timeline.arrivals == (1, 101)


def test_unread_outputs_and_unread_tangents_go_at_once() -> None:
    graph = Graph(
        values=(
            value("x", 1),
            value("y", 10),
            value("mask", 5),
            value("t", 50),
            value("u", 70),
            value("g", 3),
        ),
        ops=(op("y mask = f x"), op("g = b t", 1)),
        outside=(Outside("x"), Outside("t", 1, 1, owned=False), Outside("u", 1, 1, owned=False)),
        required=(Required("y", 0), Required("g", 1)),
    )
    timeline = simulate(graph, unplanned(graph))
    assert bytes_of(timeline) == [("f", 15, 10), ("b", 63, 13)]
    assert timeline.arrivals[1] - timeline.base == 10 + 50 + 70
    assert timeline.peak == timeline.arrivals[1]


def test_an_effect_runs_though_nobody_reads_it() -> None:
    graph = Graph(
        values=(value("x", 1), value("y", 10), value("r", 5)),
        ops=(op("r = dropout x", rerun=False, effect=True), op("y = f x")),
        outside=(Outside("x"),),
        required=(Required("y", 0),),
    )
    assert bytes_of(simulate(graph, unplanned(graph))) == [("dropout", 5, 0), ("f", 10, 10)]


def test_a_buffer_that_forward_overwrites_weighs_the_same_in_backward() -> None:
    graph = Graph(
        values=(value("b", 7, Kind.BUFFER), value("y", 10), value("g", 3)),
        ops=(op("y = f b"), op("g = h y", 1)),
        outside=(Outside("b", 0, until=0),),
        required=(Required("y", 0, until=0), Required("g", 1)),
    )
    timeline = simulate(graph, unplanned(graph))
    assert [(m.during, m.after) for m in timeline.moments] == [(17, 17), (20, 10)]
    with pytest.raises(
        GraphError,
        match=r"storage %b is read by %f in segment 1 \(backward\) and does not exist there",
    ):
        simulate(graph, Program((("f",), ("f", "h"))))


def test_what_was_never_made_is_an_error_not_a_number() -> None:
    with pytest.raises(GraphError, match=r"storage %h is read by %relu in segment 0"):
        simulate(net(), Program((("relu",), ("relu_backward", "mm_backward"))))
    with pytest.raises(GraphError, match=r"storage %dw is required at the end of segment 1"):
        simulate(net(), Program((("mm", "relu"), ())))


def test_four_segments_of_two_pieces() -> None:
    """Forward, forward, backward, backward: what the first keeps lies under both pieces of the second."""
    graph = Graph(
        values=(*(value(n, s) for n, s in zip("xabyuvg", (1, 10, 20, 40, 80, 160, 320))),),
        ops=(op("a = f0 x"), op("b y = f1 a", 1), op("u = b1 y", 2), op("v g = b0 u a", 3)),
        segments=(Segment("f0", 0), Segment("f1", 1), Segment("b1", 1), Segment("b0", 0)),
        outside=(Outside("x"),),
        required=(Required("a", 0, 1), Required("u", 2, 2), Required("g", 3)),
    )
    timeline = simulate(graph, unplanned(graph))
    assert bytes_of(timeline) == [
        ("f0", 10, 10), ("f1", 70, 50), ("b1", 130, 90), ("b0", 570, 320),
    ]  # fmt: skip
    assert [set(k) for k in timeline.kept] == [{"a"}, {"a", "y"}, {"a", "u"}, set()]
    assert timeline.arrivals == (1, 11, 51, 91)


def test_an_empty_step() -> None:
    graph = Graph(values=(value("x", 3),), ops=(), outside=(Outside("x"),))
    timeline = simulate(graph, unplanned(graph))
    assert (timeline.peak, timeline.peak_moment, timeline.moments) == (3, -1, ())
    with pytest.raises(IndexError, match="moment 0 of 0"):
        timeline.alive(0)


def test_eleven_thousand_ops_are_fast() -> None:
    graph = ladder(2750)
    assert min(_seconds_of_simulating(graph) for _ in range(5)) < 0.3


def ladder(depth: int) -> Graph:
    """A chain of `depth` matmuls and ReLUs and its backward: four ops for each."""
    values, ops = [value("x0", 8), value("t", 8)], []
    for i in range(depth):
        values += [value(f"w{i}", 8), value(f"h{i}", 8), value(f"x{i + 1}", 8)]
        ops += [op(f"h{i} = mm{i} x{i} w{i}"), op(f"x{i + 1} = relu{i} h{i}")]
    upstream = "t"
    for i in reversed(range(depth)):
        values += [value(f"dh{i}", 8), value(f"dw{i}", 8), value(f"dx{i}", 8)]
        ops += [
            op(f"dh{i} = drelu{i} {upstream} x{i + 1}", 1),
            op(f"dw{i} dx{i} = dmm{i} dh{i} x{i} w{i}", 1),
        ]
        upstream = f"dx{i}"
    return Graph(
        values=tuple(values),
        ops=tuple(ops),
        outside=(
            Outside("x0"),
            Outside("t", 1, owned=False),
            *(Outside(f"w{i}") for i in range(depth)),
        ),
        required=(Required(f"x{depth}", 0), *(Required(f"dw{i}", 1) for i in range(depth))),
    )


def _seconds_of_simulating(graph: Graph) -> float:
    """Of the processor, not of the wall: other tests may run beside this one."""
    program = unplanned(graph)
    start = time.process_time()
    simulate(graph, program)
    return time.process_time() - start
