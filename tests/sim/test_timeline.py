"""Every breakdown adds up to what the simulator says, and puts bytes where a person would look for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Value
from lowtide.ir.program import Program, unplanned
from lowtide.sim.memory import simulate
from lowtide.sim.timeline import Row, base_of, breakdown, by_kind
from tests.strategies import graphs, programs


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rows_and_columns_add_up(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(programs(graph)))
    columns = by_kind(timeline)
    for index, moment in enumerate(timeline.moments):
        rows = breakdown(timeline, index)
        assert sum(r.bytes for r in rows) == moment.during
        assert list(rows) == sorted(rows, key=lambda r: -r.bytes)
        totals: Counter[str] = Counter()
        for row in rows:
            totals[row.kind] += row.bytes
        assert {k: c[index] for k, c in columns.items() if c[index]} == dict(totals)


def small() -> Graph:
    return Graph(
        values=(
            Value("x", 100, "x", Kind.BATCH),
            Value("w", 1000, "w", Kind.PARAMETER, "fc"),
            Value("h", 10, "h", Kind.ACTIVATION, "fc"),
            Value("y", 20, "y", Kind.ACTIVATION, "act"),
            Value("t", 30, "t", Kind.GRADIENT),
            Value("dh", 40, "dh", Kind.TEMPORARY, "act"),
            Value("dw", 50, "dw", Kind.GRADIENT, "fc"),
        ),
        ops=(
            Op("mm", "mm", ("x", "w"), ("h",), workspace=7, layer="fc"),
            Op("relu", "relu", ("h",), ("y",), layer="act"),
            Op("drelu", "drelu", ("t", "h"), ("dh",), 1, layer="act"),
            Op("dmm", "dmm", ("dh", "x"), ("dw",), 1, workspace=9, layer="fc"),
        ),
        outside=(Outside("x"), Outside("w"), Outside("t", 1, owned=False)),
        required=(Required("y", 0), Required("dw", 1)),
        held={Kind.OPTIMIZER: 5000},
    )


def test_parameters_belong_to_the_layer_that_reads_them_first() -> None:
    graph = small()
    values = tuple(replace(v, layer="") if v.name == "w" else v for v in graph.values)
    unnamed = replace(graph, values=values)
    assert base_of(unnamed) == base_of(graph)


def test_one_moment_by_kind_and_layer() -> None:
    timeline = simulate(small(), unplanned(small()))
    assert breakdown(timeline, 0) == (
        Row("optimizer state", "", 5000),
        Row("parameter", "fc", 1000),
        Row("batch", "", 100),
        Row("activation", "fc", 10),
        Row("op workspace", "fc", 7),
    )
    assert breakdown(timeline, 2)[3:] == (
        Row("temporary", "act", 40),
        Row("gradient", "", 30),
        Row("activation kept", "act", 20),
        Row("activation kept", "fc", 10),
    )


def test_all_moments_by_kind() -> None:
    timeline = simulate(small(), unplanned(small()))
    assert by_kind(timeline) == {
        "optimizer state": (5000,) * 4,
        "batch": (100,) * 4,
        "parameter": (1000,) * 4,
        "activation": (10, 30, 0, 0),
        "activation kept": (0, 0, 30, 20),
        "temporary": (0, 0, 40, 40),
        "gradient": (0, 0, 30, 50),
        "op workspace": (7, 0, 0, 9),
    }


def test_what_is_made_again_is_an_activation_not_one_kept() -> None:
    timeline = simulate(small(), Program((("mm", "relu"), ("mm", "drelu", "dmm"))))
    assert by_kind(timeline)["activation"] == (10, 30, 10, 10, 0)
    assert by_kind(timeline)["activation kept"] == (0, 0, 20, 20, 20)
