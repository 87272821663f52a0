"""What tests of reports draw: a step of a few blocks alike, with what rules add, in a plan that uses all of it."""

from __future__ import annotations

from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Value
from lowtide.ir.program import Program
from lowtide.plan.plan import Plan
from lowtide.plan.profile import Block, Profile

__all__ = ["MIB", "a_graph", "a_plan", "a_profile"]

MIB = 2**20
EVIL = "</script><img src=x onerror=alert(1)>"


def a_graph(blocks: int = 3, evil: str = "") -> Graph:
    """Each block is a matrix product and a ReLU; its backward may read a mask instead of the ReLU's output."""
    values = [Value("x0", MIB, "x0", Kind.BATCH), Value("t", 4 * MIB, "t", Kind.GRADIENT)]
    outside = [Outside("x0"), Outside("t", 1, owned=False)]
    forward: list[Op] = []
    backward: list[Op] = []
    for i in range(blocks):
        layer = f"layers.{i}{evil}"
        values += [
            Value(f"w{i}", MIB, f"w{i}", Kind.PARAMETER, f"{layer}.fc"),
            Value(f"h{i}", 4 * MIB, f"h{i}", Kind.ACTIVATION, f"{layer}.fc"),
            Value(f"x{i + 1}", 4 * MIB, f"x{i + 1}", Kind.ACTIVATION, f"{layer}.act"),
            Value(f"m{i}", MIB // 8, f"m{i}", Kind.ACTIVATION, f"{layer}.act"),
            Value(f"dh{i}", 4 * MIB, f"dh{i}", Kind.TEMPORARY, f"{layer}.act"),
            Value(f"dw{i}", MIB, f"dw{i}", Kind.GRADIENT, f"{layer}.fc"),
        ]
        outside.append(Outside(f"w{i}"))
        above = f"dh{i + 1}" if i + 1 < blocks else "t"
        fc, act, source = f"{layer}.fc", f"{layer}.act", f"train.py:{i}{evil}"
        forward += [
            Op(f"mm{i}", "aten.mm.default", (f"x{i}", f"w{i}"), (f"h{i}",), seconds=2e-3, workspace=MIB, layer=fc, source=source),
            Op(f"relu{i}", "aten.relu.default", (f"h{i}",), (f"x{i + 1}",), seconds=1e-3, layer=act, source=source),
            Op(f"pack{i}", "lowtide.pack", (f"h{i}",), (f"m{i}",), seconds=1e-4, layer=act, rule="mask", of=f"dact{i}"),
        ]  # fmt: skip
        backward = [
            Op(f"dact{i}", "aten.relu_backward", (above, f"h{i}"), (f"dh{i}",), 1, seconds=1e-3, layer=act),
            Op(f"dmask{i}", "lowtide.mask_backward", (above, f"m{i}"), (f"dh{i}",), 1, seconds=1e-3, layer=act, rule="mask", of=f"dact{i}"),
            Op(f"dmm{i}", "aten.mm.default", (f"dh{i}", f"x{i}"), (f"dw{i}",), 1, seconds=2e-3, layer=fc),
            *backward,
        ]  # fmt: skip
    required = [Required(f"x{blocks}", 0), *(Required(f"dw{i}", 1) for i in range(blocks))]
    return Graph(
        tuple(values),
        (*forward, *backward),
        outside=tuple(outside),
        required=tuple(required),
        held={Kind.OPTIMIZER: 2 * MIB},
    )


def a_plan(blocks: int = 3, evil: str = "") -> Plan:
    """The first block's ReLU is run again, the second's mask is kept, the others are as they were."""
    graph = a_graph(blocks, evil)
    forward = [f"{name}{i}" for i in range(blocks) for name in ("mm", "relu", "pack") if name != "pack" or i == 1]  # fmt: skip
    backward: list[str] = []
    for i in reversed(range(blocks)):
        backward += ["relu0"] if i == 1 else []
        backward += [f"dmask{i}" if i == 1 else f"dact{i}", f"dmm{i}"]
    return Plan(
        graph=graph,
        program=Program((tuple(forward), tuple(backward))),
        budget=40 * MIB,
        status="feasible",
        solver="by hand",
        solve_seconds=0.1,
        lower_bound=0.017,
        floor=20 * MIB,
        covers=(f"covers 1 graph{evil}",),
        environment={"torch": f"2.13{evil}"},
    )


def a_profile(evil: str = "") -> Profile:
    graph = a_graph(evil=evil)
    return Profile(
        model=f"Net{evil}",
        seconds=1.0,
        peak=30 * MIB,
        blocks=(
            Block(10 * MIB, 0.0, 1.0, Kind.PARAMETER.value, f"layers.0{evil}"),
            Block(20 * MIB, 0.2, 0.8, "activation kept", f"layers.1{evil}", "aten.mm", "train.py:3"),
            Block(10 * MIB, 0.8, 0.9, "never heard of", "layers.1", "aten.mul", "train.py:4"),
        ),
        phases=(("forward", 0.0), ("backward", 0.5), ("optimizer", 0.9)),
        graph=graph,
        peaks=(29 * MIB, 30 * MIB),
        environment={"torch": "2.13"},
    )  # fmt: skip
