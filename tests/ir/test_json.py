"""A graph comes back from its file as it was, a damaged file is refused by field, and the hash tells graphs apart."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import FileFormatError, LowtideError
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.ir.json import dump, graph_from_json, graph_hash, graph_to_json
from tests.strategies import graphs


def small() -> Graph:
    return Graph(
        values=(
            Value("x", 8, "x", Kind.BATCH),
            Value("h", 8, "h", layer="fc", spec="f32[2]"),
            Value("v", 0, "h", keep=False),
            Value("g", 4, "g", Kind.GRADIENT),
        ),
        ops=(
            Op("f", "aten.mm", ("x",), ("h",), 0, 0.5, 16, "fc", "train.py:3", "mm(f32[2])"),
            Op("v", "aten.view", ("h",), ("v",)),
            Op("b", "aten.mm", ("v",), ("g",), 1, rerun=False),
        ),
        outside=(Outside("x"),),
        required=(Required("h", 0, 1), Required("g", 1)),
        held={"optimizer state": 32},
    )


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_a_graph_comes_back_as_it_was(graph: Graph) -> None:
    data = graph_to_json(graph)
    assert graph_from_json(data) == graph
    again = graph_from_json(json.loads(dump(data)))
    assert again == graph
    assert graph_hash(again) == graph_hash(graph)
    assert json.loads(dump(data)) == data


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("values", Value),
        ("ops", Op),
        ("segments", Segment),
        ("outside", Outside),
        ("required", Required),
    ],
)
def test_no_field_is_left_out(table: str, row: type[Any]) -> None:
    assert set(graph_to_json(small())["columns"][table]) == {f.name for f in fields(row)}


def test_rows_are_short_and_one_to_a_line() -> None:
    lines = dump({"note": "any", "graph": graph_to_json(small()), "empty": []}).splitlines()
    assert '   ["h", 8, "h", "activation", "f32[2]", "fc"],' in lines
    assert '   ["v", 0, "h", "activation", "", "", false],' in lines
    assert (
        '   ["f", "aten.mm", ["x"], ["h"], 0, 0.5, 16, "fc", "train.py:3", "mm(f32[2])"],' in lines
    )
    assert '   ["v", "aten.view", ["h"], ["v"]],' in lines
    assert '   ["g", 1]' in lines


Damage = Callable[[dict[str, Any]], Any]


def put(value: object, *path: Any) -> Damage:
    def damage(data: dict[str, Any]) -> None:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return damage


DAMAGED: list[tuple[Damage, str]] = [
    (lambda d: d.pop("schema"), "schema is missing"),
    (put(7, "schema"), "schema: expected 1, the version this Lowtide reads, found 7"),
    (put("1", "schema"), "schema: expected a whole number, found '1'"),
    (put([], "columns"), "columns: expected an object, found []"),
    (lambda d: d["columns"].pop("ops"), "columns.ops is missing"),
    (put(["name"], "columns", "segments"), "columns.segments: expected name piece, found ['name']"),
    (lambda d: d.pop("ops"), "ops is missing"),
    (put(None, "ops"), "ops: expected a list of rows, found None"),
    (put({}, "values", 2), "values[2]: expected a list, found {}"),
    (put([], "values", 1), "values[1]: expected 3 to 7 fields, found []"),
    (put([0] * 20, "ops", 0), "ops[0]: expected 4 to 16 fields"),
    (put(5, "values", 0, 0), "values[0].name: expected text, found 5"),
    (put("8", "values", 0, 1), "values[0].bytes: expected a whole number, found '8'"),
    (put(8.0, "values", 0, 1), "values[0].bytes: expected a whole number, found 8.0"),
    (put(True, "values", 0, 1), "values[0].bytes: expected a whole number, found True"),
    (put("colour", "values", 0, 3), "values[0].kind: expected one of parameter, buffer"),
    (put([], "values", 0, 3), "values[0].kind: expected text, found []"),
    (put(1, "values", 2, 6), "values[2].keep: expected true or false, found 1"),
    (put("x", "ops", 0, 2), "ops[0].inputs: expected a list of names, found 'x'"),
    (put(["x", None], "ops", 0, 2), "ops[0].inputs[1]: expected text, found None"),
    (put("1s", "ops", 0, 5), "ops[0].seconds: expected a finite number, found '1s'"),
    (put(float("nan"), "ops", 0, 5), "ops[0].seconds: expected a finite number, found nan"),
    (put(float("inf"), "ops", 0, 5), "ops[0].seconds: expected a finite number, found inf"),
    (put(10**400, "ops", 0, 5), "ops[0].seconds: expected a finite number, found 1000"),
    (put(0, "ops", 2, 10), "ops[2].rerun: expected true or false, found 0"),
    (put(1.5, "required", 0, 1), "required[0].segment: expected a whole number, found 1.5"),
    (put([3], "held"), "held: expected an object, found [3]"),
    (put("3", "held", "buffer"), "held.buffer: expected a whole number, found '3'"),
    (put(["nowhere"], "ops", 0, 2), "op %f reads %nowhere, which is no value"),
    (put(-8, "values", 0, 1), "value %x has -8 bytes"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGED, ids=[words for _, words in DAMAGED])
def test_the_first_wrong_field_is_named(damage: Damage, words: str) -> None:
    data = copy.deepcopy(graph_to_json(small()))
    damage(data)
    with pytest.raises(FileFormatError, match=r"^F041 graph file: " + re.escape(words)):
        graph_from_json(data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(ANYTHING)
def test_what_is_no_graph_is_refused(data: object) -> None:
    with pytest.raises(FileFormatError, match="graph file: "):
        graph_from_json(data)


@settings(max_examples=200)
@given(st.data())
def test_no_damage_crashes_the_reader(data: st.DataObject) -> None:
    found = copy.deepcopy(graph_to_json(small()))
    place: Any = found
    while isinstance(place, (dict, list)) and place:
        key = data.draw(
            st.sampled_from(list(place) if isinstance(place, dict) else range(len(place)))
        )
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(ANYTHING)
            break
        place = place[key]
    try:
        graph_from_json(found)
    except LowtideError as error:
        assert error.code == "F041"  # noqa: PT017


CHANGES: list[tuple[str, Callable[[Graph], Graph], bool]] = [
    ("seconds", lambda g: change(g, "f", seconds=9.0), True),
    ("workspace", lambda g: change(g, "f", workspace=9), True),
    ("source", lambda g: change(g, "f", source="other.py:1"), True),
    ("signature", lambda g: change(g, "f", signature="mm(2)"), True),
    ("layer", lambda g: change(g, "f", layer="fc2"), True),
    ("held", lambda g: replace(g, held={}), True),
    ("target", lambda g: change(g, "f", target="aten.bmm"), False),
    ("op's name", lambda g: change(g, "f", name="f2"), False),
    ("inputs", lambda g: change(g, "b", inputs=("h",)), False),
    ("rerun", lambda g: change(g, "f", rerun=False), False),
    ("rule", lambda g: change(g, "f", rule="encode"), False),
    ("bytes", lambda g: replace(g, values=(replace(g.values[0], bytes=9), *g.values[1:])), False),
    (
        "shape",
        lambda g: replace(g, values=(replace(g.values[0], spec="f32[1]"), *g.values[1:])),
        False,
    ),
    ("keep", lambda g: replace(g, values=(replace(g.values[0], keep=False), *g.values[1:])), False),
    ("required", lambda g: replace(g, required=g.required[1:]), False),
    ("until", lambda g: replace(g, outside=(Outside("x", 0, 0),)), False),
    ("pieces", lambda g: replace(g, segments=(Segment("forward"), Segment("backward", 1))), False),
    ("order", lambda g: g.with_ops((g.ops[0], g.ops[2], g.ops[1])), False),
]


def change(graph: Graph, name: str, /, **changes: Any) -> Graph:
    return graph.with_ops(replace(o, **changes) if o.name == name else o for o in graph.ops)


@pytest.mark.parametrize(("edit", "same"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_the_hash_sees_structure_and_sizes_only(edit: Callable[[Graph], Graph], same: bool) -> None:
    assert (graph_hash(edit(small())) == graph_hash(small())) is same


def test_the_hash_does_not_change_between_versions() -> None:
    assert re.fullmatch("[0-9a-f]{64}", graph_hash(small()))
    assert graph_hash(small()) == "d85a8814913f3197285e51fc18e9741064ad746b186d279b1985086432d11e13"
