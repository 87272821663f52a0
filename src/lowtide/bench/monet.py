"""How do the MONeT paper's own instances become problems of ours?

Goes in: one network file of the published data (graph, sizes, a cost profile). Comes out: a `Graph` in which backward ops have
several forms, one for each set of forward tensors they can work from, and the `Sweeps` that weigh it in the paper's memory
model. The search is the one that plans real graphs; `bench/monet_schedule.py` writes its answers down.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import FileFormatError
from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.solve.gaps import pack
from lowtide.solve.problem import Problem, make_problem
from lowtide.solve.search import Search
from lowtide.solve.sweeps import Sweeps

__all__ = ["Instance", "read_instance"]

_KIB = 1024
_NEVER, _HUGE = 10**9, 2**60
"""Hundredths of a millisecond, and workspace, of an algorithm that failed."""
Json = dict[str, Any]


def _up(size: int | None) -> int:
    return math.ceil((size or 0) / _KIB) * _KIB


def _centi(ms: float | None) -> int:
    return _NEVER if ms is None else math.ceil(ms * 100)


@dataclass(frozen=True)
class Instance:
    model: str
    profile: str
    problem: Problem
    sweeps: Sweeps
    names: tuple[str, ...]
    """Of the nodes, as schedules spell them: 12, 12m, loss."""
    backward: tuple[tuple[int, str, bool], ...]
    """Of the sweeps from 1 on: the op, its part, and whether it has algorithms rather than choices."""

    def search(self, budget: int) -> Search:
        search = Search(self.problem, self.sweeps)
        search.set_room(budget)
        return search


def read_instance(folder: Path, model: str, profile: str) -> Instance:
    path = folder / f"{model}.json"
    try:
        network = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileFormatError(f"no network of the MONeT data in {path}: {error}") from None
    if profile not in network["profiles"]:
        known = ", ".join(sorted(network["profiles"]))
        raise FileFormatError(f"{path} has no profile {profile!r}; it has {known}")
    return _Reading(network, profile).instance()


class _Reading:
    """One network as it is read: nodes, graph, costs."""

    def __init__(self, network: Json, profile: str) -> None:
        self.network, self.profile = network, profile
        self.ops: list[Json] = network["ops"]
        self.costs: list[Json] = network["profiles"][profile]["ops"]
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.uses: list[list[int]] = []
        self.node: dict[str, int] = {}
        for op, cost in zip(self.ops, self.costs, strict=True):
            self.add(str(op["id"]), op["output_bytes"], [self.node[str(i)] for i in op["inputs"]])
            if "intermediate" in cost["forward"]:
                size = cost["forward"]["intermediate"]["bytes"]
                self.add(f"{op['id']}m", size, [len(self.names) - 1])
        self.loss = len(self.names)
        self.add("loss", network["loss"]["bytes"], [self.loss - 1])
        self.parts = [
            (op, part)
            for op, cost in zip(reversed(self.ops), reversed(self.costs), strict=True)
            for part in cost["backward"]
        ]
        self.fixed = [network["fixed"]["total_bytes"]] * (self.loss + 1)
        self.add_backward()

    def add(self, name: str, size: int, uses: list[int]) -> None:
        self.node[name] = len(self.names)
        self.names.append(name)
        self.sizes.append(size)
        self.uses.append(uses)

    def add_backward(self) -> None:
        """Gradients as nodes after the forward ones: they only serve to find out what is alive when."""
        users: dict[int, list[int]] = {op["id"]: [] for op in self.ops}
        for op in self.ops:
            for i in op["inputs"]:
                users[i].append(op["id"])
        gradient: dict[int, int] = {}
        held = self.fixed[0]
        for op, part in self.parts:
            held += part["param_grad_bytes"]
            self.fixed.append(held)
            by_loss = [self.loss] if self.loss in self.needs(part)[0] else []
            self.uses.append([gradient[u] for u in users[op["id"]]] + by_loss)
            self.sizes.append(part["input_grad_bytes"])
            gradient[op["id"]] = len(self.sizes) - 1  # the last part's stays

    def needs(self, part: Json) -> list[list[int]]:
        """For each choice of a backward op the forward nodes it works from."""
        alternatives = part.get("choices") or [{"needs": part["needs"]}]
        return [[self.node[_node_name(need)] for need in a["needs"]] for a in alternatives]

    def graph(self) -> Graph:
        values = [
            Value(f"v{name}", _up(size), f"v{name}")
            for name, size in zip(self.names, self.sizes, strict=False)
        ]
        ops = [self.forward(op, cost) for op, cost in zip(self.ops, self.costs, strict=True)]
        ops.append(Op("loss", "loss", (f"v{self.names[self.loss - 1]}",), ("vloss",)))
        before: tuple[str, ...] = ()
        for t, (op, part) in enumerate(self.parts, 1):
            made = f"g{t}"
            values.append(Value(made, 0, made, Kind.TEMPORARY))
            for number, needs in enumerate(self.needs(part)):
                name = f"b{t}" if not number else f"b{t}.{number}"
                kind = f"{op['kind']} backward"
                read = (*(f"v{self.names[n]}" for n in needs), *before)
                rule, of = ("choice", f"b{t}") if number else ("", "")
                seconds = min(c for c, _ in _options(part, number)) * 1e-5
                ops.append(Op(name, kind, read, (made,), 1, seconds, rule=rule, of=of))
            before = (made,)
        return Graph(values=tuple(values), ops=tuple(ops))

    def forward(self, op: Json, cost: Json) -> Op:
        made = [f"v{op['id']}"] + [f"v{op['id']}m"] * ("intermediate" in cost["forward"])
        read = tuple(f"v{i}" for i in op["inputs"])
        seconds = min(c for c, _ in _options(cost["forward"])) * 1e-5
        return Op(f"f{op['id']}", op["kind"], read, tuple(made), 0, seconds)

    def instance(self) -> Instance:
        problem = _decided(make_problem(self.graph()))
        backward = tuple(
            (op["id"], part.get("part", "all"), "algorithms" in part) for op, part in self.parts
        )
        names = tuple(self.names)
        sweeps = self.sweeps(problem)
        return Instance(self.network["model"], self.profile, problem, sweeps, names, backward)

    def sweeps(self, problem: Problem) -> Sweeps:
        nodes = self.loss + 1
        rows: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
        again: list[list[tuple[int, int]]] = [[] for _ in range(nodes)]
        table = {
            name: np.zeros(nodes, np.int64)
            for name in (
                "has_extra", "place_time", "place_space", "extra_time", "extra_space", "extra_place_time", "extra_place_space",
            )
        }  # fmt: skip
        overwrites = np.full(nodes, -1, np.int64)
        for op, cost in zip(self.ops, self.costs, strict=True):
            j, forward = self.node[str(op["id"])], cost["forward"]
            rows[j] = _options(forward)
            again[j] = _options(forward.get("recompute", forward))
            place, extra = forward.get("inplace"), forward.get("intermediate")
            if place:
                overwrites[j] = self.node[str(place["overwrites"])]
                table["place_time"][j] = _centi(place["runtime_ms"])
                table["place_space"][j] = _up(place["workspace_bytes"])
            if extra:
                placed = extra.get("inplace", extra)
                table["has_extra"][j] = 1
                table["extra_time"][j] = _centi(extra["extra_runtime_ms"])
                table["extra_space"][j] = _up(extra["workspace_bytes"])
                table["extra_place_time"][j] = _centi(placed["extra_runtime_ms"])
                table["extra_place_space"][j] = _up(placed["workspace_bytes"])
        rows[self.loss] = again[self.loss] = [(0, 0)]
        row = np.full(len(problem.seconds), -1, np.int64)
        made = np.full(len(problem.seconds), -1, np.int64)
        for number, name in enumerate(problem.op_names):
            if name.startswith("b"):
                t, _, choice = name[1:].partition(".")
                row[number] = len(rows)
                rows.append(_options(self.parts[int(t) - 1][1], int(choice or 0)))
                again.append(rows[-1])
            else:
                row[number] = made[number] = self.node[name.removeprefix("f")]
        live = self.live()
        users: list[list[int]] = [[] for _ in range(nodes)]
        for j in range(nodes):
            for u in self.uses[j]:
                users[u].append(j)
        return Sweeps(
            sweep=self.positions(problem),
            node=np.array([self.node.get(n[1:], -1) if n[0] == "v" else -1 for n in problem.storage_names], np.int64),
            made=made,
            row=row,
            size=np.array([_up(s) for s in self.sizes], np.int64),
            live=np.array([_up(sum(self.sizes[u] for u in now)) for now in live], np.int64),
            fixed=np.array([_up(f) for f in self.fixed], np.int64),
            live0=pack(live[:nodes]).start,
            live_nodes=pack(live[:nodes]).items,
            users0=pack(users).start,
            users=pack(users).items,
            options0=np.cumsum([0, *map(len, rows)]).astype(np.int64),
            time=np.array([c for r in rows for c, _ in r], np.int64),
            again=np.array([c for r in again for c, _ in r], np.int64),
            space=np.array([w for r in rows for _, w in r], np.int64),
            space_again=np.array([w for r in again for _, w in r], np.int64),
            overwrites=overwrites,
            **table,
        )  # fmt: skip

    def positions(self, problem: Problem) -> Any:
        """The sweep of each position."""
        found = []
        for op in problem.order.tolist():
            name = problem.op_names[op] if op < len(problem.op_names) else ""
            found.append(int(name[1:]) if name.startswith("b") else 0 if name else -1)
        return np.array(found, np.int64)

    def live(self) -> list[list[int]]:
        last: dict[int, int] = {}
        for w, used in enumerate(self.uses):
            for u in used:
                last[u] = max(last.get(u, -1), w)
        return [
            sorted(u for u, end in last.items() if u < w <= end) for w in range(len(self.sizes))
        ]


def _decided(problem: Problem) -> Problem:
    """In this model the graph says what is alive during the first sweep: no question is open there."""
    gaps = problem.gaps
    ends = problem.segment[np.minimum(gaps.end, len(problem.order) - 1)]
    return replace(problem, gaps=replace(gaps, open=gaps.open & (ends > 0)))


def _node_name(need: list[Any]) -> str:
    kind = need[0]
    return "loss" if kind == "loss" else f"{need[1]}m" if kind == "intermediate" else str(need[1])


def _options(cost: Json, choice: int = 0) -> list[tuple[int, int]]:
    """(time, workspace) of each algorithm of an op, or of one choice of a backward op."""
    if "choices" in cost:
        cost = cost["choices"][choice]
    options = cost.get("algorithms") or [cost]
    return [
        (
            _centi(o["runtime_ms"]),
            _up(o["workspace_bytes"]) if o["runtime_ms"] is not None else _HUGE,
        )
        for o in options
    ]
