"""Schedules in the MONeT paper's memory model: our weighing against a plain evaluator of the paper's formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from lowtide.bench.monet import Instance, read_instance
from lowtide.bench.monet_run import plan_one, table
from lowtide.bench.monet_schedule import as_schedule
from lowtide.cli import main
from lowtide.errors import FileFormatError
from lowtide.solve.anneal import evaluate
from lowtide.solve.gaps import DROP, EARLY, UNTIL
from lowtide.solve.search import Effort

Json = dict[str, Any]
KIB = 1024


def network(seed: int, length: int = 9) -> Json:
    """A random chain with skips: convolutions with algorithms, activations in place or with a mask, adds."""
    rng = Random(seed)
    ops: list[Json] = []
    costs: list[Json] = []
    for i in range(length):
        kind = rng.choice(("conv", "relu", "add")) if i else "conv"
        inputs = [] if not i else [i - 1]
        if kind == "add" and i > 1:
            inputs = sorted({i - 1, rng.randrange(i - 1)})
        size = rng.randint(1, 40) * 1000
        ops.append(
            {"id": i, "kind": kind, "inputs": inputs, "output_bytes": size, "param_bytes": 0}
        )
        costs.append(cost(rng, kind, i, inputs, size))
    return {
        "model": "small",
        "ops": ops,
        "loss": {"bytes": 4},
        "fixed": {"total_bytes": 5000},
        "profiles": {"all": {"ops": costs}},
    }


def cost(rng: Random, kind: str, i: int, inputs: list[int], size: int) -> Json:
    def ms() -> float:
        return rng.randint(1, 900) / 100

    def one() -> Json:
        return {"runtime_ms": ms(), "workspace_bytes": rng.randint(0, 30) * 1000}

    if kind == "conv":
        failed = {"runtime_ms": None, "workspace_bytes": None}
        need = [["input", inputs[0]]] if inputs else []
        grads = {"input_grad_bytes": 0, "param_grad_bytes": 3000}
        backward = [
            {"part": "params", **grads, "needs": need, "algorithms": [one(), failed, one()]},
            {"part": "input", "input_grad_bytes": size, "param_grad_bytes": 0, "needs": [], "algorithms": [one()]},
        ]  # fmt: skip
        return {"forward": {"algorithms": [one(), one(), failed]}, "backward": backward}
    forward: Json = one()
    choices = [{"needs": [["input", inputs[0]]], **one()}]
    if kind == "relu":
        forward["recompute"] = one()
        forward["inplace"] = {"overwrites": inputs[0], "runtime_ms": ms(), "workspace_bytes": -size}
        forward["intermediate"] = {
            "bytes": size // 8, "extra_runtime_ms": ms(), "workspace_bytes": 1000,
            "inplace": {"extra_runtime_ms": ms(), "workspace_bytes": -size // 2},
        }  # fmt: skip
        choices += [{"needs": [["output", i]], **one()}, {"needs": [["intermediate", i]], **one()}]
    part = {"part": "all", "input_grad_bytes": size, "param_grad_bytes": 0, "choices": choices}
    return {"forward": forward, "backward": [part]}


def up(size: int) -> int:
    return math.ceil(size / KIB) * KIB


class Judge:
    """The paper's rules, written down plainly: names instead of numbers, sets instead of arrays."""

    def __init__(self, net: Json) -> None:
        self.costs = {
            c_op["id"]: c for c_op, c in zip(net["ops"], net["profiles"]["all"]["ops"], strict=True)
        }
        self.order: list[str] = []
        self.size: dict[str, int] = {}
        self.reads: dict[str, list[str]] = {}
        for op in net["ops"]:
            self.put(str(op["id"]), op["output_bytes"], [str(i) for i in op["inputs"]])
            if "intermediate" in self.costs[op["id"]]["forward"]:
                extra = self.costs[op["id"]]["forward"]["intermediate"]
                self.put(f"{op['id']}m", extra["bytes"], [str(op["id"])])
        self.put("loss", net["loss"]["bytes"], [self.order[-1]])
        self.forward = list(self.order)
        users = {
            op["id"]: [o["id"] for o in net["ops"] if op["id"] in o["inputs"]] for op in net["ops"]
        }
        self.backward: list[tuple[int, Json]] = []
        last: dict[int, str] = {}
        self.fixed = dict.fromkeys(self.forward, net["fixed"]["total_bytes"])
        held = net["fixed"]["total_bytes"]
        for op in reversed(net["ops"]):
            for part in self.costs[op["id"]]["backward"]:
                name = f"back{len(self.backward) + 1}"
                held += part["param_grad_bytes"]
                self.put(name, part["input_grad_bytes"], [last[u] for u in users[op["id"]]])
                self.fixed[name] = held
                self.backward.append((op["id"], part))
            last[op["id"]] = self.order[-1]

    def put(self, name: str, size: int, reads: list[str]) -> None:
        self.order.append(name)
        self.size[name], self.reads[name] = size, reads

    def live(self, name: str) -> set[str]:
        at = self.order.index(name)
        ends = {
            r: max(self.order.index(w) for w in self.order if r in self.reads[w])
            for n in self.order
            for r in self.reads[n]
        }
        return {u for u, end in ends.items() if self.order.index(u) < at <= end}

    def live_bytes(self, name: str) -> int:
        return up(sum(self.size[u] for u in self.live(name)))

    def evaluate(self, schedule: Json) -> tuple[float, int]:
        kept = [set(), *({str(k) for k in step["keep"]} for step in schedule["steps"])]
        ms = peak = 0
        for t, step in enumerate(schedule["steps"]):
            entry, after = kept[t], kept[t + 1]
            spaces: dict[str, int] = {}
            overwritten: set[str] = set()
            for e in step["compute"]:
                took, made = self.compute(e, t)
                ms += took
                spaces |= made
                if e.get("inplace"):
                    overwritten.add(str(self.costs[e["op"]]["forward"]["inplace"]["overwrites"]))
            if t == 0 or step["recompute_loss"]:
                spaces["loss"] = 0
            for name in spaces:
                assert all(r in spaces or r in entry for r in self.reads[name]), (t, name)
            assert after <= entry | set(spaces)
            assert not after & overwritten
            own = "loss" if t == 0 else f"back{t}"
            before = self.order[self.order.index(own) - 1]
            needs, chosen = {self.forward[-2]}, None
            if t:
                op, part = self.backward[t - 1]
                assert step["backward"]["op"] == op
                chosen = (part.get("choices") or part["algorithms"])[
                    step["backward"].get("choice", step["backward"].get("algorithm"))
                ]
                needs = {
                    f"{n[1]}m" if n[0] == "intermediate" else str(n[1])
                    for n in chosen.get("needs", part.get("needs"))
                }
                assert all(n in after or (n in spaces and n not in overwritten) for n in needs)
                ms += math.ceil(chosen["runtime_ms"] * 100)
            ground = up(self.fixed[before]) + (self.live_bytes(own) if t else 0)
            for j, name in enumerate(self.forward):
                early, late = self.forward[:j], self.forward[j:]
                wanted = sum(up(self.size[n]) for n in needs if n in early and n not in after)
                resting = {n for n in early if n in after}
                peak = max(
                    peak, ground + wanted + self.total(entry & set(late)) + self.total(resting)
                )
                if name in spaces:
                    here = spaces[name] + up(self.size[name]) + self.live_bytes(name)
                    waiting = self.total(entry & set(late[1:]))
                    peak = max(
                        peak,
                        ground + wanted + waiting + self.total(resting - self.live(name)) + here,
                    )
            if chosen:
                most = (
                    up(chosen["workspace_bytes"])
                    + self.live_bytes(own)
                    + up(self.fixed[own])
                    + up(self.size[own])
                )
                peak = max(peak, most + self.total(needs | after))
        return ms / 100, peak

    def total(self, names: set[str]) -> int:
        return sum(up(self.size[n]) for n in names)

    def compute(self, e: Json, t: int) -> tuple[int, dict[str, int]]:
        forward = self.costs[e["op"]]["forward"]
        if e.get("inplace"):
            way = forward["inplace"]
        elif "algorithms" in forward:
            way = forward["algorithms"][e["algorithm"]]
        else:
            way = forward.get("recompute", forward) if t else forward
        ms, spaces = math.ceil(way["runtime_ms"] * 100), {str(e["op"]): up(way["workspace_bytes"])}
        if e.get("intermediate"):
            extra = (
                forward["intermediate"]["inplace"] if e.get("inplace") else forward["intermediate"]
            )
            ms += math.ceil(extra["extra_runtime_ms"] * 100)
            spaces[f"{e['op']}m"] = up(extra["workspace_bytes"])
        return ms, spaces


def written(folder: Path, seed: int) -> tuple[Json, Instance]:
    net = network(seed)
    (folder / "small.json").write_text(json.dumps(net))
    (folder / "results.json").write_text(json.dumps({"results": []}))
    return net, read_instance(folder, "small", "all")


@pytest.mark.parametrize("seed", range(12))
def test_weighed_as_the_paper_says(seed: int, tmp_path: Path):
    net, instance = written(tmp_path, seed)
    judge, rng = Judge(net), Random(seed)
    for limit in (10**9, 150_000, 60_000):
        search = instance.search(limit)
        for _ in range(8):
            state, choice = search.problem.gaps.start_state.copy(), search.player.no_choice()
            for gap in np.flatnonzero(search.problem.gaps.open):
                state[gap] = rng.randrange(3)
                if state[gap] == DROP:
                    state[gap] |= rng.randrange(6) << EARLY | rng.randrange(6) << UNTIL
            for place in search.moves.options:
                choice[place] = rng.randrange(6)
            answers = search.player.play(state, choice)
            if answers is None:
                continue
            ms, peak = judge.evaluate(as_schedule(instance, search, answers, 1.0))
            assert answers.seconds * 1e3 == pytest.approx(ms)
            assert answers.peak == peak


@pytest.mark.parametrize("seed", range(12))
def test_a_byte_over_the_limit_is_taken_where_it_is_worth_its_price(seed: int, tmp_path: Path):
    _, instance = written(tmp_path, seed)
    player = instance.search(60_000).player
    state, choice = instance.problem.gaps.start_state, player.no_choice()

    def weighed(limit: int, price: float) -> tuple[float, int]:
        parts = player.arrays, player.sweeps, player.buffers
        _, seconds, peak, _ = evaluate(*parts, state, choice, limit, price, player.during)
        return seconds, peak

    assert weighed(60_000, 0.0) == weighed(10**9, math.inf)
    strict, lax = weighed(60_000, math.inf), weighed(60_000, 1e-9)
    assert lax[0] <= strict[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_valid_within_its_budget(seed: int, tmp_path: Path):
    net, instance = written(tmp_path, seed)
    most = instance.search(2**40).keep_all().peak
    least = instance.search(0).floor(effort=Effort(0.5)).peak
    budget = (least + most) / 2
    row = plan_one(tmp_path, "small", "all", budget / 2**30, 2.0)
    ms, peak = Judge(net).evaluate(row.schedule)
    assert peak <= budget < most
    assert row.ms == pytest.approx(ms)
    assert "small" in table([row])


def test_the_verb_writes_a_schedule(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    written(tmp_path, 1)
    out = tmp_path / "out.json"
    command = ["bench", "monet", "--data", str(tmp_path), "--model", "small", "--profile", "all"]
    assert main([*command, "--budget", "1", "--seconds", "0.5", "-o", str(out)]) == 0
    assert json.loads(out.read_text())["budget_gb"] == 1.0
    assert "small" in capsys.readouterr().out


def test_an_unknown_profile_is_named_with_the_known_ones(tmp_path: Path):
    written(tmp_path, 1)
    with pytest.raises(FileFormatError, match="it has all"):
        read_instance(tmp_path, "small", "other")
