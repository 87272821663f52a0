"""How are graphs, plans and profiles written to files and read back?

Text, versioned, never executed: JSON with a schema number, a checksum over the whole content, the graph with its hash, the
environment, the program as op names, and the predicted numbers. Reading checks all of it before anything is used; what is
wrong is said with the file's name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from lowtide.errors import FileFormatError, GraphError
from lowtide.ir.check import check_program
from lowtide.ir.graph import Graph
from lowtide.ir.json import dump, graph_from_json, graph_hash, graph_to_json
from lowtide.ir.program import Program
from lowtide.plan.plan import Plan
from lowtide.plan.profile import Block, Profile

__all__ = [
    "load_file",
    "read_content",
    "read_program",
    "save_graph",
    "save_plan",
    "save_profile",
    "write_content",
]

SCHEMA = 1


def save_graph(graph: Graph, path: Path, environment: Mapping[str, str] | None = None) -> Path:
    return write_content(
        path,
        {"lowtide": "graph", "environment": dict(environment or {}), "graph": graph_to_json(graph)},
    )


def save_plan(plan: Plan, path: Path) -> Path:
    content = {
        "lowtide": "plan",
        "environment": dict(plan.environment),
        "budget": plan.budget,
        "status": plan.status,
        "solver": plan.solver,
        "solve_seconds": plan.solve_seconds,
        "lower_bound": plan.lower_bound,
        "floor": plan.floor,
        "why": plan.why,
        "allow": list(plan.allow),
        "measured_peak": plan.measured_peak,
        "gradient_error": plan.gradient_error,
        "covers": list(plan.covers),
        "predicted": {
            "peak": plan.peak,
            "seconds": plan.seconds,
            "unplanned_peak": plan.unplanned_peak,
            "unplanned_seconds": plan.unplanned_seconds,
        },
        "program": [list(s) for s in plan.program.steps],
        "graph_hash": graph_hash(plan.graph),
        "graph": graph_to_json(plan.graph),
    }
    return write_content(path, content)


def save_profile(profile: Profile, path: Path) -> Path:
    """Texts of blocks are written once and numbered: a step has thousands of blocks from a few hundred lines of code."""
    graph = profile.graph
    words: dict[str, int] = {}
    blocks = [
        [b.bytes, _short(b.start), _short(b.end)]
        + [words.setdefault(text, len(words)) for text in (b.kind, b.layer, b.op, b.source)]
        for b in profile.blocks
    ]
    content = {
        "lowtide": "profile",
        "environment": dict(profile.environment),
        "model": profile.model,
        "seconds": _short(profile.seconds),
        "peak": profile.peak,
        "peaks": list(profile.peaks),
        "estimated": profile.estimated,
        "phases": [[name, _short(start)] for name, start in profile.phases],
        "words": [[word] for word in words],
        "blocks": blocks,
        "graph_hash": graph_hash(graph) if graph is not None else None,
        "graph": graph_to_json(graph) if graph is not None else None,
    }
    return write_content(path, content)


def _short(seconds: float) -> float:
    return round(seconds, 9)


def load_file(path: str | Path) -> Graph | Plan | Profile:
    """A graph, a plan or a profile, whichever the file holds."""
    content = read_content(Path(path))
    try:
        if content.get("lowtide") == "profile":
            return _profile(content)
        graph = graph_from_json(content.get("graph"))
        if content.get("lowtide") == "graph":
            return graph
        if content.get("lowtide") == "plan":
            return _plan(graph, content)
    except (FileFormatError, GraphError) as error:
        raise FileFormatError(f"{path}: {_words(error)}") from None
    raise FileFormatError(
        f"{path} holds {content.get('lowtide')!r}; expected a graph, a plan or a profile"
    )


def _plan(graph: Graph, content: Mapping[str, Any]) -> Plan:
    program = read_program(graph, content.get("program"))
    measured, error = content.get("measured_peak"), content.get("gradient_error")
    return Plan(
        graph=graph,
        program=program,
        budget=_field(content, "budget", int),
        status=_field(content, "status", str),
        solver=_field(content, "solver", str),
        solve_seconds=float(_field(content, "solve_seconds", (int, float))),
        lower_bound=float(_field(content, "lower_bound", (int, float))),
        floor=_field(content, "floor", int),
        why=_field(content, "why", str),
        allow=tuple(map(str, _field(content, "allow", list))),
        measured_peak=measured if isinstance(measured, int) else None,
        gradient_error=float(error) if isinstance(error, (int, float)) else None,
        covers=tuple(map(str, _field(content, "covers", list))),
        environment={str(k): str(v) for k, v in _field(content, "environment", dict).items()},
    )


def _profile(content: Mapping[str, Any]) -> Profile:
    words = [_word(row) for row in _field(content, "words", list)]
    graph = content.get("graph")
    return Profile(
        model=_field(content, "model", str),
        seconds=float(_field(content, "seconds", (int, float))),
        peak=_field(content, "peak", int),
        blocks=tuple(
            _block(row, words, f"blocks[{i}]")
            for i, row in enumerate(_field(content, "blocks", list))
        ),
        phases=tuple(_phase(row) for row in _field(content, "phases", list)),
        graph=graph_from_json(graph) if graph is not None else None,
        peaks=tuple(int(_number(size, "peaks")) for size in _field(content, "peaks", list)),
        estimated=content.get("estimated") is True,
        environment={str(k): str(v) for k, v in _field(content, "environment", dict).items()},
    )


def _block(row: object, words: list[str], where: str) -> Block:
    if not isinstance(row, list) or len(row) != 7:
        raise FileFormatError(f"{where}: expected 7 numbers, found {row!r}")
    size, start, end, *names = (_number(cell, where) for cell in row)
    if not all(0 <= name < len(words) for name in names):
        raise FileFormatError(f"{where}: names a word that is not in the list of words")
    return Block(int(size), start, end, *(words[int(name)] for name in names))


def _phase(row: object) -> tuple[str, float]:
    if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
        raise FileFormatError(f"phases: expected a name and seconds, found {row!r}")
    return row[0], _number(row[1], "phases")


def _word(row: object) -> str:
    if not isinstance(row, list) or len(row) != 1 or not isinstance(row[0], str):
        raise FileFormatError(f"words: expected a text, found {row!r}")
    return row[0]


def _number(cell: object, where: str) -> float:
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        raise FileFormatError(f"{where}: expected a number, found {cell!r}")
    return float(cell)


def read_program(graph: Graph, steps: object) -> Program:
    """A program of this graph, or an error that says what is wrong with it."""
    if not isinstance(steps, list) or not all(
        isinstance(s, list) and all(isinstance(n, str) for n in s) for s in steps
    ):
        raise FileFormatError("program: expected a list of op names for each segment")
    program = Program(tuple(tuple(s) for s in steps))
    check_program(graph, program)
    return program


def _field(content: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    value = content.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FileFormatError(f"{name}: found {value!r}")
    return value


def write_content(path: Path, content: dict[str, Any]) -> Path:
    """All or nothing: a crash leaves the old file."""
    content = {"schema": SCHEMA, "hash": "", **content}
    content["hash"] = _checksum(content)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(dump(content) + "\n", encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read_content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"no file {path}") from None
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError) as error:
        raise FileFormatError(f"{path} is not a Lowtide file: {error}") from None
    if not isinstance(content, dict) or "lowtide" not in content:
        raise FileFormatError(f"{path} is not a Lowtide file: it says nothing of what it holds")
    if content.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{path} has schema {content.get('schema')!r}; this version reads {SCHEMA}. Make it again with this version"
        )
    if content.get("hash") != _checksum(content):
        raise FileFormatError(
            f"{path} is damaged or was edited: its checksum does not match its content"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps({**content, "hash": ""}, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _words(error: Exception) -> str:
    return str(error).split(" ", 1)[1]
