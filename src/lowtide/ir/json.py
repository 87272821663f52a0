"""How is a graph written to a file, read back without trusting it, and told from another?

Written: one row per value and op, lists without keys, trailing defaults left off; the columns are named once, at
the top. `dump` puts each row on a line of its own, so that ten thousand ops stay compact and two graphs can still
be compared with `diff`.

Read: every field is checked before it is used. The first one that is wrong is named (`ops[3].inputs`) in a
`FileFormatError`, and so is what makes a graph of sound fields malformed (`ir/check.py`). Nothing in a file is ever
evaluated.

Told apart: `graph_hash` covers what decides whether a plan of one graph is a plan of another, that is structure and
sizes. It leaves out what is measured (seconds, workspaces), what is there for people (layers, kinds, source lines),
what only prices an op (signatures) and what lies beside the graph (held bytes): none of them changes which programs
there are.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from hashlib import sha256
from typing import Any

from lowtide.errors import FileFormatError, GraphError
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value

__all__ = ["SCHEMA", "dump", "graph_from_json", "graph_hash", "graph_to_json"]

SCHEMA = 1
_HUGE = 10**300  # an int above it has no float


def _text(field: object, where: str) -> str:
    if not isinstance(field, str):
        raise _wrong(where, "text", field)
    return field


def _count(field: object, where: str) -> int:
    if isinstance(field, bool) or not isinstance(field, int):
        raise _wrong(where, "a whole number", field)
    return field


def _number(field: object, where: str) -> float:
    if isinstance(field, bool) or not isinstance(field, (int, float)) or not abs(field) < _HUGE:
        raise _wrong(where, "a finite number", field)
    return float(field)


def _flag(field: object, where: str) -> bool:
    if not isinstance(field, bool):
        raise _wrong(where, "true or false", field)
    return field


def _names(field: object, where: str) -> tuple[str, ...]:
    if not isinstance(field, list):
        raise _wrong(where, "a list of names", field)
    return tuple(_text(name, f"{where}[{i}]") for i, name in enumerate(field))


def _kind(field: object, where: str) -> Kind:
    word = _text(field, where)
    if word not in _KINDS:
        raise _wrong(where, f"one of {', '.join(_KINDS)}", field)
    return _KINDS[word]


def _wrong(where: str, wanted: str, found: object) -> FileFormatError:
    return FileFormatError(f"graph file: {where}: expected {wanted}, found {reprlib.repr(found)}")


_KINDS = {k.value: k for k in Kind}
_Reader = Callable[[object, str], Any]


@dataclass(frozen=True, slots=True)
class _Table:
    """One list of rows: what each becomes, and how its columns are read. Mostly default columns come last."""

    name: str
    row: type[Any]
    columns: Mapping[str, _Reader]
    defaults: Mapping[str, Any]


def _table(name: str, row: type[Any], /, **columns: _Reader) -> _Table:
    defaults = {f.name: f.default for f in fields(row) if f.default is not MISSING}
    return _Table(name, row, columns, defaults)


_TABLES = (
    _table("segments", Segment, name=_text, piece=_count),
    _table("values", Value, name=_text, bytes=_count, storage=_text, kind=_kind, spec=_text, layer=_text, keep=_flag),
    _table("outside", Outside, value=_text, since=_count, until=_count, owned=_flag),
    _table("required", Required, value=_text, segment=_count, until=_count),
    _table(
        "ops", Op, name=_text, target=_text, inputs=_names, outputs=_names, segment=_count,
        seconds=_number, workspace=_count, layer=_text, source=_text, signature=_text,
        rerun=_flag, effect=_flag, rule=_text, of=_text, over=_names, rows=_names,
    ),
)  # fmt: skip
_COLUMNS = {table.name: [*table.columns] for table in _TABLES}


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Plain lists, numbers and text, ready for `json.dumps` or `dump`."""
    return {
        "schema": SCHEMA,
        "columns": {name: [*columns] for name, columns in _COLUMNS.items()},
        "held": {str(kind): size for kind, size in graph.held.items()},
        **{t.name: [_write_row(t, row) for row in getattr(graph, t.name)] for t in _TABLES},
    }


def _write_row(table: _Table, row: object) -> list[Any]:
    names = [*table.columns]
    cells = [getattr(row, name) for name in names]
    while names[-1] in table.defaults and cells[-1] == table.defaults[names[-1]]:
        names.pop()
        cells.pop()
    return [_plain(cell) for cell in cells]


def _plain(cell: object) -> object:
    if isinstance(cell, tuple):
        return [*cell]
    return cell.value if isinstance(cell, Kind) else cell


def dump(data: Mapping[str, Any], indent: str = "") -> str:
    """JSON text with one row per line."""
    inner = indent + " "
    lines = []
    for key, item in data.items():
        if isinstance(item, Mapping) and item:
            text = dump(item, inner)
        elif isinstance(item, list) and item and all(isinstance(row, list) for row in item):
            rows = [f"{inner} {_compact(row)}" for row in item]
            text = "[\n" + ",\n".join(rows) + f"\n{inner}]"
        else:
            text = _compact(item)
        lines.append(f"{inner}{_compact(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _compact(item: object) -> str:
    return json.dumps(item, separators=(", ", ":"), allow_nan=False)


def graph_from_json(data: object) -> Graph:
    """The graph, checked. Raises `FileFormatError` for the first field that is wrong."""
    if not isinstance(data, Mapping):
        raise _wrong("the whole", "an object", data)
    schema = _count(_field(data, "schema"), "schema")
    if schema != SCHEMA:
        raise _wrong("schema", f"{SCHEMA}, the version this Lowtide reads", schema)
    for name, columns in _COLUMNS.items():
        found = _field(_object(_field(data, "columns"), "columns"), name, "columns.")
        if found != columns:
            raise _wrong(f"columns.{name}", " ".join(columns), found)
    held = _object(_field(data, "held"), "held")
    parts = {t.name: _read_rows(t, _field(data, t.name)) for t in _TABLES}
    graph = Graph(**parts, held={_text(k, "held"): _count(v, f"held.{k}") for k, v in held.items()})
    try:
        check_graph(graph)
    except GraphError as error:
        raise FileFormatError(f"graph file: {str(error).removeprefix(f'{error.code} ')}") from error
    return graph


def _field(data: Mapping[Any, Any], name: str, prefix: str = "") -> object:
    if name not in data:
        raise FileFormatError(f"graph file: {prefix}{name} is missing")
    return data[name]


def _object(field: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(field, Mapping):
        raise _wrong(where, "an object", field)
    return field


def _read_rows(table: _Table, rows: object) -> tuple[Any, ...]:
    if not isinstance(rows, list):
        raise _wrong(table.name, "a list of rows", rows)
    return tuple(_read_row(table, row, f"{table.name}[{i}]") for i, row in enumerate(rows))


def _read_row(table: _Table, row: object, where: str) -> Any:
    least, most = len(table.columns) - len(table.defaults), len(table.columns)
    if not isinstance(row, list):
        raise _wrong(where, "a list", row)
    if not least <= len(row) <= most:
        raise _wrong(where, f"{least} to {most} fields", row)
    cells = {
        name: read(cell, f"{where}.{name}")
        for (name, read), cell in zip(table.columns.items(), row)
    }
    return table.row(**cells)


def graph_hash(graph: Graph) -> str:
    """SHA-256 over structure and sizes."""
    identity = {
        "segments": [s.piece for s in graph.segments],
        "values": [[v.name, v.bytes, v.storage, v.spec, v.keep] for v in graph.values],
        "outside": [[o.value, o.since, o.until, o.owned] for o in graph.outside],
        "required": [[r.value, r.segment, r.until] for r in graph.required],
        "ops": [
            [o.name, o.target, o.inputs, o.outputs, o.segment, o.rerun, o.effect, o.rule, o.of]
            for o in graph.ops
        ],
    }
    return sha256(json.dumps(identity, separators=(",", ":")).encode("ascii")).hexdigest()
