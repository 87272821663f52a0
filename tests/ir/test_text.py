"""The text of a graph and of a program, to the letter; and its `free` lines, held to the simulator."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from textwrap import dedent

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.ir.program import Program, unplanned
from lowtide.ir.text import format_graph, format_program
from lowtide.sim.memory import simulate, written_over
from tests.strategies import graphs, programs


def small() -> Graph:
    return Graph(
        values=(
            Value("x", 2048, "x", Kind.BATCH, spec="f32[8, 64]"),
            Value("w", 2**20, "w", Kind.PARAMETER),
            Value("b", 4, "b", Kind.BUFFER),
            Value("h", 2048, "h", spec="f32[8, 64]"),
            Value("hv", 0, "h", spec="f32[512]"),
            Value("y", 2048, "y", spec="f32[512]"),
            Value("mask", 512, "mask", spec="b8[512]"),
            Value("t", 2048, "t", Kind.GRADIENT, spec="f32[512]"),
            Value("p", 64, "p"),
            Value("g", 2**20, "g", Kind.GRADIENT),
        ),
        ops=(
            Op(
                "h",
                "aten.mm.default",
                ("x", "w"),
                ("h",),
                seconds=0.0012,
                layer="fc",
                source="train.py:4",
            ),
            Op("hv", "aten.view.default", ("h",), ("hv",), layer="fc"),
            Op(
                "drop",
                "aten.native_dropout.default",
                ("hv",),
                ("y", "mask"),
                workspace=16,
                rerun=False,
                effect=True,
            ),
            Op("seen", "lowtide.note", ("b",), (), rerun=False, effect=True),
            Op("pack", "lowtide.pack", ("h",), ("p",), rule="encode"),
            Op("unpack", "lowtide.unpack", ("p",), ("h",), rule="encode", seconds=4e-5),
            Op("g", "aten.mm.default", ("t", "hv", "mask"), ("g",), 1, seconds=2.0, rerun=False),
        ),
        outside=(Outside("x"), Outside("w"), Outside("b", until=0), Outside("t", 1, owned=False)),
        required=(Required("y", 0, until=0), Required("g", 1)),
        held={"optimizer state": 3 * 2**20},
    )


def test_a_graph() -> None:
    assert format_graph(small()) == dedent("""\
        graph: 5 ops + 2 from rules, 10 values, 2 segments

        outside:
          %x: f32[8, 64] 2.00 KiB   # batch
          %w: 1.00 MiB   # parameter
          %b: 4 B   # buffer, until segment 0
          %t: f32[512] 2.00 KiB   # gradient, from segment 1, goes with its last use
          optimizer state 3.00 MiB, untouched

        segment 0 forward:
          %h: f32[8, 64] 2.00 KiB = aten.mm.default(%x, %w)   # fc, 1.2 ms, ws 0 B, train.py:4
          %hv: f32[512] view of %h = aten.view.default(%h)   # fc, view
          [drop] %y: f32[512] 2.00 KiB, %mask: b8[512] 512 B = aten.native_dropout.default(%hv)   # 0 us, ws 16 B, effect
          [seen] lowtide.note(%b)   # 0 us, ws 0 B, effect
          [pack] %p: 64 B = lowtide.pack(%h)   # 0 us, ws 0 B, rule encode
          [unpack] %h: f32[8, 64] 2.00 KiB = lowtide.unpack(%p)   # 40 us, ws 0 B, rule encode
          required %y until segment 0

        segment 1 backward:
          %g: 1.00 MiB = aten.mm.default(%t, %hv, %mask)   # 2.00 s, ws 0 B, runs once
          required %g
        """)


def test_a_graph_with_a_program_says_how_often_each_op_runs() -> None:
    text = format_graph(small(), Program((("h", "drop", "seen"), ("h", "g"))))
    assert re.findall(r"^  (\S+).*, (x\d|not in the program)$", text, re.MULTILINE) == [
        ("%h:", "x2"),
        ("[drop]", "x1"),
        ("[seen]", "x1"),
        ("[pack]", "not in the program"),
        ("[unpack]", "not in the program"),
        ("%g:", "x1"),
    ]


def test_a_program() -> None:
    plan = Program((("h", "drop", "seen"), ("h", "g")))
    assert format_program(small(), plan) == dedent("""\
        segment 0 forward:
          %h: f32[8, 64] 2.00 KiB = aten.mm.default(%x, %w)
          [drop] %y: f32[512] 2.00 KiB, %mask: b8[512] 512 B = aten.native_dropout.default(%hv)
            free %h  2.00 KiB
          [seen] lowtide.note(%b)
          required %y until segment 0

        segment 1 backward:
          %h: f32[8, 64] 2.00 KiB = aten.mm.default(%x, %w)   # again
          %g: 1.00 MiB = aten.mm.default(%t, %hv, %mask)
            free %h  2.00 KiB
            free %mask  512 B
            free %t  2.00 KiB
          required %g
        """)


def test_a_rules_maker_is_marked_in_a_program() -> None:
    text = format_program(small(), Program((("h", "pack", "drop", "seen"), ("unpack", "g"))))
    assert (
        "  [unpack] %h: f32[8, 64] 2.00 KiB = lowtide.unpack(%p)   # rule encode\n    free %p  64 B\n"
        in text
    )


def test_pieces_are_named_where_there_are_several() -> None:
    graph = Graph(values=(), ops=(), segments=(Segment("forward"), Segment("forward", 1)))
    assert "segment 1 forward (piece 1):" in format_graph(graph)
    assert "piece" not in format_graph(small())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_storages_are_freed_where_the_simulator_says_they_go(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(programs(graph)))
    freed: list[Counter[str]] = []
    for line in format_program(graph, timeline.program).splitlines():
        if line.startswith("    free"):
            freed[-1][line.split()[1][1:]] += 1
        elif "(" in line and line.startswith("  "):
            freed.append(Counter())
    gone = [
        Counter(c.storage for c in timeline.copies if c.last == timeline.slot(i))
        for i in range(len(freed))
    ]
    for i, storage in enumerate(chain(*written_over(graph, timeline.program))):
        if storage:  # never there beside what the op makes, and shown after it
            gone[i - 1][storage] -= 1
            gone[i][storage] += 1
    gone = [+counts for counts in gone]
    assert len(freed) == len(timeline.moments)
    assert freed == gone


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_every_op_and_value_is_named(graph: Graph) -> None:
    text = format_graph(graph, unplanned(graph))
    assert all(f"%{v.name}" in text for v in graph.values)
    assert text.isascii()
