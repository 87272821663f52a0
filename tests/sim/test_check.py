"""What the user marked for recomputation may not be kept, unless the caller holds it anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.errors import GraphError
from lowtide.ir.graph import Graph, Op, Outside, Required, Value
from lowtide.ir.program import Program, unplanned
from lowtide.sim.check import check_kept
from lowtide.sim.memory import simulate


def marked() -> Graph:
    return Graph(
        values=(
            Value("x", 1, "x"),
            Value("h", 64, "h", keep=False),
            Value("y", 2, "y"),
            Value("g", 3, "g"),
        ),
        ops=(
            Op("f", "f", ("x",), ("h",)),
            Op("r", "r", ("h",), ("y",)),
            Op("b", "b", ("h",), ("g",), 1),
        ),
        outside=(Outside("x"),),
        required=(Required("y", 0), Required("g", 1)),
    )


def test_keeping_a_marked_value_is_refused() -> None:
    words = r"value %h \(64 bytes\) is marked keep=False, but is kept from segment 0 \(forward\) into segment 1 \(backward\)"
    with pytest.raises(GraphError, match=words):
        check_kept(simulate(marked(), unplanned(marked())))


def test_making_it_again_is_fine() -> None:
    check_kept(simulate(marked(), Program((("f", "r"), ("f", "b")))))


def test_what_the_caller_holds_is_fine() -> None:
    graph = marked()
    held = replace(graph, required=(*graph.required, Required("h", 0)))
    check_kept(simulate(held, unplanned(held)))
    let_go = replace(graph, required=(*graph.required, Required("h", 0, until=0)))
    with pytest.raises(GraphError, match="keep=False"):
        check_kept(simulate(let_go, unplanned(let_go)))
