"""Each way a graph can be malformed is refused in words that name the culprit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from lowtide.errors import GraphError
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Op, Outside, Required, Value
from tests.strategies import graphs

PACKED = Value("p", 1, "p")
ENCODE = Op("encode", "pack", ("h",), ("p",), rule="encode")
DECODE = Op("decode", "unpack", ("p",), ("h",), rule="encode")


def good() -> Graph:
    """h = f(x, w), v a view of h, y = r(v), note(y) an effect; g = b(t, v)."""
    return Graph(
        values=tuple(
            Value(n, s, o)
            for n, s, o in (
                ("x", 8, "x"), ("w", 4, "w"), ("h", 8, "h"), ("v", 0, "h"), ("y", 8, "y"), ("t", 8, "t"), ("g", 4, "g"),
            )
        ),
        ops=(
            Op("f", "aten.mm", ("x", "w"), ("h",)),
            Op("v", "aten.view", ("h",), ("v",)),
            Op("r", "aten.relu", ("v",), ("y",)),
            Op("note", "print", ("y",), (), rerun=False, effect=True),
            Op("b", "aten.mm", ("t", "v"), ("g",), 1),
        ),
        outside=(Outside("x"), Outside("w"), Outside("t", 1, 1, owned=False)),
        required=(Required("y", 0), Required("g", 1)),
    )  # fmt: skip


def with_op(graph: Graph, name: str, /, **changes: Any) -> Graph:
    return graph.with_ops(replace(o, **changes) if o.name == name else o for o in graph.ops)


def with_value(graph: Graph, name: str, /, **changes: Any) -> Graph:
    return replace(
        graph, values=tuple(replace(v, **changes) if v.name == name else v for v in graph.values)
    )


def with_rules(graph: Graph, *ops: Op) -> Graph:
    return replace(graph, values=(*graph.values, PACKED), ops=(*graph.ops, *ops))


def reordered(graph: Graph, *names: str) -> Graph:
    return graph.with_ops(graph.op[n] for n in names)


def more_outside(graph: Graph, *outside: Outside) -> Graph:
    return replace(graph, outside=(*graph.outside, *outside))


def more_required(graph: Graph, *required: Required) -> Graph:
    return replace(graph, required=(*graph.required, *required))


Change = Callable[[Graph], Graph]

MALFORMED: list[tuple[str, Change, str]] = [
    # names
    (
        "value twice",
        lambda g: replace(g, values=(*g.values, Value("h", 1, "h"))),
        "value %h is listed twice",
    ),
    ("op twice", lambda g: g.with_ops((*g.ops, g.op["f"])), "op %f is listed twice"),
    ("outside twice", lambda g: more_outside(g, Outside("x")), "outside value %x is listed twice"),
    ("nameless value", lambda g: with_value(g, "h", name=""), "value number 2 has an empty name"),
    ("nameless op", lambda g: with_op(g, "f", name=""), "op number 0 has an empty name"),
    (
        "nameless output",
        lambda g: with_op(g, "f", outputs=("h", "")),
        "op %f has an empty name for output 1",
    ),
    # unknown values
    (
        "unknown input",
        lambda g: with_op(g, "f", inputs=("x", "weight")),
        "op %f reads %weight, which is no value",
    ),
    (
        "unknown output",
        lambda g: with_op(g, "f", outputs=("h", "q")),
        "op %f makes %q, which is no value",
    ),
    (
        "unknown required",
        lambda g: more_required(g, Required("q", 0)),
        "required lists %q, which is no value",
    ),
    (
        "unknown outside",
        lambda g: more_outside(g, Outside("q")),
        "outside lists %q, which is no value",
    ),
    (
        "unknown storage",
        lambda g: with_value(g, "v", storage="q"),
        "value %v lies in storage %q, which is no value",
    ),
    # numbers
    ("bytes", lambda g: with_value(g, "h", bytes=-8), "value %h has -8 bytes"),
    ("seconds", lambda g: with_op(g, "f", seconds=-0.5), "op %f takes -0.5 seconds"),
    ("nan", lambda g: with_op(g, "f", seconds=float("nan")), "op %f takes nan seconds"),
    ("workspace", lambda g: with_op(g, "f", workspace=-1), "op %f has a workspace of -1 bytes"),
    ("held", lambda g: replace(g, held={"buffer": -3}), "-3 bytes of buffer are held"),
    # segments
    ("no segments", lambda g: replace(g, segments=()), "the graph has no segments"),
    (
        "op's segment",
        lambda g: with_op(g, "b", segment=2),
        "op %b is in segment 2, but there are 2, from 0 on",
    ),
    (
        "below zero",
        lambda g: with_op(g, "f", segment=-1),
        "op %f is in segment -1, but there are 2",
    ),
    (
        "outside's segment",
        lambda g: replace(g, outside=(*g.outside[:2], Outside("t", 5, 5))),
        "outside value %t exists since its start in segment 5, but there are 2",
    ),
    (
        "required's segment",
        lambda g: more_required(g, Required("g", 9)),
        "value %g is required in segment 9, but there are 2",
    ),
    (
        "descending",
        lambda g: reordered(with_op(g, "note", inputs=()), "f", "v", "r", "b", "note"),
        "op %note of segment 0 is listed after %b of segment 1: captured ops come in ascending order of segments",
    ),
    # values
    (
        "view of a view",
        lambda g: replace(g, values=(*g.values, Value("vv", 0, "v"))),
        "view %vv lies in storage %v, which is itself a view of %h",
    ),
    (
        "heavy view",
        lambda g: with_value(g, "v", bytes=8),
        "view %v of %h has 8 bytes: a view weighs nothing itself",
    ),
    (
        "no maker",
        lambda g: replace(g, values=(*g.values, Value("q", 1, "q"))),
        "value %q has no maker and does not exist outside",
    ),
    # outside
    (
        "since after until",
        lambda g: replace(g, outside=(*g.outside[:2], Outside("t", 1, 0))),
        "outside value %t exists since segment 1 until segment 0",
    ),
    (
        "outside view",
        lambda g: more_outside(g, Outside("v")),
        "outside value %v is a view of %h, which does not exist outside",
    ),
    (
        "outside view, other owner",
        lambda g: more_outside(with_value(g, "t", bytes=0, storage="x"), Outside("y")),
        "outside value %t says owned=False, but its storage %x owned=True",
    ),
    # flags
    (
        "effect twice",
        lambda g: with_op(g, "note", rerun=True),
        "op %note has an effect and says rerun=True: an effect happens once",
    ),
    (
        "a rule's effect",
        lambda g: with_rules(g, ENCODE, replace(DECODE, rerun=False, effect=True)),
        "op %decode has an effect, but was added by rule 'encode': only captured ops may",
    ),
    # makers
    ("output twice", lambda g: with_op(g, "f", outputs=("h", "h")), "op %f makes %h twice"),
    ("from itself", lambda g: with_op(g, "f", inputs=("x", "h")), "op %f makes %h from itself"),
    (
        "view of what it never sees",
        lambda g: with_op(g, "v", inputs=("x",)),
        "op %v makes %v, a view of %h, but neither reads nor makes %h",
    ),
    (
        "view of two",
        lambda g: with_op(g, "v", inputs=("h", "x")),
        "view op %v reads 2 storages (%h, %x): a view has one",
    ),
    (
        "two captured makers",
        lambda g: with_op(g, "r", outputs=("y", "h")),
        "value %h is made by captured op %f and again by captured op %r: only a rule's op may be a second maker",
    ),
    (
        "outside and made",
        lambda g: with_op(g, "r", outputs=("y", "w")),
        "value %w is made by the caller and again by captured op %r",
    ),
    # order
    (
        "made later",
        lambda g: reordered(g, "v", "f", "r", "note", "b"),
        "op %v reads %h, which is made later, by %f: ops are listed after what they read",
    ),
    (
        "made by a rule only",
        lambda g: with_op(with_rules(g, ENCODE), "b", inputs=("t", "p")),
        "op %b reads %p, which no captured op makes",
    ),
    (
        "not yet outside",
        lambda g: with_op(g, "r", inputs=("v", "t")),
        "op %r may run in segment 0, but reads %t, which first exists in segment 1",
    ),
    (
        "no longer outside",
        lambda g: with_op(
            replace(g, outside=(Outside("x", 0, 0), *g.outside[1:])), "b", inputs=("t", "x")
        ),
        "op %b of segment 1 reads %x, which exists only until segment 0",
    ),
    (
        "second maker too early",
        lambda g: with_rules(g, DECODE, ENCODE),
        "op %decode of rule 'encode' reads %p, which is made later, by %encode: ops are listed after what they read",
    ),
    (
        "second maker in too early a segment",
        lambda g: with_rules(g, replace(ENCODE, inputs=("g",))),
        "op %encode of rule 'encode' may run in segment 0, but reads %g, which first exists in segment 1",
    ),
    # required
    (
        "required too early",
        lambda g: more_required(g, Required("g", 0)),
        "value %g is required at the end of segment 0, but captured op %b makes it in segment 1",
    ),
    (
        "required of a rule",
        lambda g: more_required(with_rules(g, ENCODE), Required("p", 1)),
        "value %p is required at the end of segment 1, but no captured op makes it",
    ),
    (
        "required before it arrives",
        lambda g: more_required(g, Required("t", 0)),
        "value %t is required at the end of segment 0, but %t exists from segment 1 to segment 1",
    ),
    (
        "held for less than nothing",
        lambda g: more_required(g, Required("g", 1, 0)),
        "value %g is required in segment 1, but held only until segment 0",
    ),
]


@pytest.mark.parametrize(
    ("change", "words"), [c[1:] for c in MALFORMED], ids=[c[0] for c in MALFORMED]
)
def test_a_malformed_graph_is_named(change: Change, words: str) -> None:
    with pytest.raises(GraphError, match=re.escape(words)):
        check_graph(change(good()))


def test_good_graphs_pass() -> None:
    check_graph(good())
    check_graph(with_rules(good(), ENCODE, DECODE))
    check_graph(Graph(values=(), ops=()))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_random_graphs_pass(graph: Graph) -> None:
    check_graph(graph)
