"""Each way a program can be wrong for its graph is refused in words that name the culprit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import GraphError
from lowtide.ir.check import check_program
from lowtide.ir.graph import Graph, Op, Outside, Segment, Value
from lowtide.ir.program import Program, unplanned
from tests.ir.test_check import DECODE, ENCODE, good, more_outside, with_op, with_rules
from tests.strategies import graphs, programs


def program(forward: str, backward: str) -> Program:
    return Program((tuple(forward.split()), tuple(backward.split())))


def with_buffer() -> Graph:
    """f reads a buffer, through a view, that is overwritten when forward ends."""
    graph = good()
    graph = replace(graph, values=(*graph.values, Value("buf", 4, "buf"), Value("bv", 0, "buf")))
    graph = graph.with_ops((Op("bv", "aten.view", ("buf",), ("bv",)), *graph.ops))
    return more_outside(with_op(graph, "f", inputs=("x", "bv")), Outside("buf", 0, 0))


def two_effects() -> Graph:
    graph = good()
    second = Op("note2", "print", ("h",), (), rerun=False, effect=True)
    return graph.with_ops((*graph.ops[:4], second, graph.ops[4]))


def two_pieces() -> Graph:
    return replace(good(), segments=(Segment("forward", 0), Segment("backward", 1)))


WRONG: list[tuple[str, Graph, Program, str]] = [
    ("segments", good(), Program((("f",),)), "the program has 1 segments, the graph has 2"),
    ("unknown", good(), program("f rr", "b"), "the program runs %rr, which is no op of the graph"),
    (
        "view",
        good(),
        program("f v r note", "b"),
        "the program runs view op %v: views are taken where they are read",
    ),
    (
        "too early",
        good(),
        program("f r note b", ""),
        "op %b may not run in segment 0 (forward, piece 0): it was captured in segment 1 (backward, piece 0)",
    ),
    (
        "another piece",
        two_pieces(),
        program("f r note", "f b"),
        "op %f may not run in segment 1 (backward, piece 1): it was captured in segment 0 (forward, piece 0)",
    ),
    ("no effect", good(), program("f r", "b"), "op %note has an effect and does not run"),
    (
        "two effects",
        good(),
        program("f r note note", "b"),
        "op %note has an effect and runs 2 times",
    ),
    (
        "late effect",
        good(),
        program("f r", "note b"),
        "op %note has an effect and runs in segment 1, but was captured in segment 0",
    ),
    (
        "order of effects",
        two_effects(),
        program("f note2 r note", "b"),
        "op %note2 has an effect and runs before %note, after which it was captured",
    ),
    (
        "twice",
        with_op(good(), "f", rerun=False),
        program("f f r note", "b"),
        "op %f has rerun=False and runs 2 times",
    ),
    (
        "once but late",
        with_op(good(), "f", rerun=False),
        program("r note", "f b"),
        "op %f has rerun=False and runs in segment 1, but was captured in segment 0",
    ),
    (
        "never made",
        good(),
        program("r note", "b"),
        "op %r reads %v in segment 0 (forward), but its storage %h was not made before",
    ),
    (
        "made after",
        good(),
        program("f note r", "b"),
        "op %note reads %y in segment 0 (forward), but it was not made before",
    ),
    (
        "no longer outside",
        with_buffer(),
        program("f r note", "f b"),
        "op %f reads %bv in segment 1 (backward), but %buf exists from segment 0 to segment 0",
    ),
    (
        "not yet outside",
        with_rules(good(), replace(ENCODE, inputs=("t",))),
        program("f r note encode", "b"),
        "op %encode reads %t in segment 0 (forward), but %t exists from segment 1 to segment 1",
    ),
    (
        "required",
        good(),
        program("f r note", ""),
        "value %g is required at the end of segment 1 (backward), but it was not made before",
    ),
]


@pytest.mark.parametrize(
    ("graph", "wrong", "words"), [c[1:] for c in WRONG], ids=[c[0] for c in WRONG]
)
def test_a_wrong_program_is_named(graph: Graph, wrong: Program, words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        check_program(graph, wrong)


def test_good_programs_pass() -> None:
    check_program(good(), program("f r note", "f b"))
    check_program(with_buffer(), program("f r note", "b"))
    check_program(with_rules(good(), ENCODE, DECODE), program("f encode r note", "decode b"))


def test_a_misspelt_name_gets_a_suggestion() -> None:
    graph = with_op(good(), "f", name="matmul")
    with pytest.raises(GraphError, match=r"did you mean 'matmul'\?"):
        check_program(graph, program("matmull r note", "b"))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_programs_pass(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    check_program(graph, unplanned(graph))
    check_program(graph, data.draw(programs(graph)))
