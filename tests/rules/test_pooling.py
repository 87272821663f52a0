"""One op for the gradients of a pool and of the ReLU before it: where it is offered, and that a step with it has the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lowtide
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph, Kind, Op, Outside, Required, Segment, Value
from lowtide.plan.plan import Plan
from lowtide.rules import add_makers
from lowtide.rules.pooling import Pools
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search
from tests.training import QUICK, differences

POOL = "aten.max_pool2d_with_indices.default"
BACKWARD = "aten.max_pool2d_with_indices_backward.default"
RELU = ("aten.relu.default", "aten.threshold_backward.default")
HARDTANH = ("aten.hardtanh.default", "aten.hardtanh_backward.default")
LEAKY = ("aten.leaky_relu.default", "aten.leaky_relu_backward.default")
LARGE, SMALL = "f32[2, 3, 8, 6]", "f32[2, 3, 4, 3]"


# What is offered.


VIEW, TURNED = "aten.view.default", "aten.transpose.int"


def graph(
    activation: tuple[str, str] = RELU, decides: str = "r", gradient: str = "dr", more: tuple[Op, ...] = ()
) -> Graph:  # fmt: skip
    """x -> u -> activation -> r -> pool -> y, and back; backward of the activation reads `gradient` and `decides`, and `more` are ops of
    the size of x before it."""
    values = [Value(n, 1152, n, spec=LARGE) for n in ("x", "u", "r", "dr", "du")]
    values += [Value(n, 288, n, spec=SMALL) for n in ("y", "dy")]
    values.append(Value("i", 576, "i", spec=SMALL.replace("f32", "i64")))
    for op in more:
        (made,), (read, *_) = op.outputs, op.inputs
        view = op.target in (VIEW, TURNED)
        values.append(Value(made, 0 if view else 1152, read if view else made, spec=LARGE))
    ops = [
        Op("sin", "aten.sin.default", ("x",), ("u",)),
        Op("act", activation[0], ("u",), ("r",)),
        *(op for op in more if op.segment == 0),
        Op("pool", POOL, ("r",), ("y", "i")),
        Op("pool_back", BACKWARD, ("dy", "r", "i"), ("dr",), 1),
        *(op for op in more if op.segment == 1),
        Op("act_back", activation[1], (gradient, decides), ("du",), 1),
    ]
    made = Graph(
        values=tuple(values), ops=tuple(ops), segments=(Segment("forward"), Segment("backward")),
        outside=(Outside("x"), Outside("dy", 1, owned=False)), required=(Required("y", 0), Required("du", 1)),
    )  # fmt: skip
    check_graph(made)
    return made


def offered(made: Graph) -> dict[str, tuple[str, ...]]:
    with_makers = add_makers(made, (Pools(),))
    check_graph(with_makers)
    return {o.name: o.inputs for o in with_makers.ops if o.of == "act_back"}


BOTH = {
    "act_back.from_indices": ("dy", "y", "i"),
    "act_back.from_packed": ("dy", "y", "pool_back.packed"),
}


def one(target: str, given: str, made: str, segment: int = 0) -> Op:
    return Op(f"make_{made}", target, (given,), (made,), segment)


@pytest.mark.parametrize(
    "made",
    [
        graph(),
        graph(gradient="v", more=(one(VIEW, "dr", "v", 1),)),
        graph(decides="v", more=(one(VIEW, "r", "v"),)),
        graph(HARDTANH, "u"),
        graph(HARDTANH, "r"),
        graph(HARDTANH, "c", more=(one("aten.clone.default", "u", "c"),)),
    ],
    ids=["relu", "gradient viewed", "output viewed", "hardtanh", "its output", "its input's copy"],
)
def test_the_gradient_of_what_blocks_is_made_from_the_pools_output(made: Graph):
    assert offered(made) == BOTH
    with_makers = add_makers(made, (Pools(),))
    packing = [o for o in with_makers.ops if o.target == "lowtide.pack"]
    assert [o.outputs for o in packing] == [("pool_back.packed",)], "packed once"
    packed = with_makers.value["pool_back.packed"]
    assert (packed.bytes, packed.kind) == (2 * 3 * 4 * 2, Kind.ACTIVATION)


def test_nothing_is_offered_where_the_pools_output_does_not_tell():
    assert not offered(graph(LEAKY)), "multiplies"
    assert not offered(graph(decides="u")), "not what the pool read"
    assert not offered(graph((LEAKY[0], HARDTANH[1]), "u")), "no hardtanh before"
    assert not offered(graph(decides="v", more=(one(TURNED, "r", "v"),))), "in another order"
    assert not offered(graph(gradient="v", more=(one(TURNED, "dr", "v", 1),))), "in another order"


def test_nothing_is_offered_where_the_pools_gradient_is_there_anyway():
    assert not offered(graph(more=(one("aten.neg.default", "dr", "n", 1),))), "read twice"
    made = graph()
    assert not offered(replace(made, required=(*made.required, Required("dr", 1))))


def test_nothing_is_offered_for_indices_of_another_pool():
    made = graph()
    others = (Value("y2", 288, "y2", spec=SMALL), replace(made.value["i"], name="i2", storage="i2"))
    other = Op("pool2", POOL, ("u",), ("y2", "i2"))
    ops = [replace(o, inputs=("dy", "r", "i2")) if o.name == "pool_back" else o for o in made.ops]
    made = replace(made, values=(*made.values, *others), ops=(ops[0], other, *ops[1:]))
    check_graph(made)
    assert not offered(made)
    assert "pool_back.from_packed" in {o.name for o in add_makers(made, (Pools(),)).ops}


# Steps with it.


def net(activation: Callable[[], nn.Module], pool: Callable[[], nn.Module], width: int = 8) -> nn.Sequential:  # fmt: skip
    layers: list[nn.Module] = []
    for i in range(3):
        layers += [nn.Conv2d(width if i else 3, width, 3, padding=1), activation(), pool()]
    return nn.Sequential(*layers)


class Loss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "halves": lambda: net(nn.ReLU, lambda: nn.MaxPool2d(2)),
    "in place": lambda: net(lambda: nn.ReLU(inplace=True), lambda: nn.MaxPool2d(2)),
    "overlapping": lambda: net(nn.ReLU, lambda: nn.MaxPool2d(3, 2, 1)),
    "everywhere": lambda: net(nn.ReLU, lambda: nn.MaxPool2d(3, 1, 1)),
    "relu6": lambda: net(nn.ReLU6, lambda: nn.MaxPool2d(2, ceil_mode=True)),
    "relu6 in place": lambda: net(lambda: nn.ReLU6(inplace=True), lambda: nn.MaxPool2d(3, 2)),
    "one dimension": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 8, 3), nn.ReLU(), nn.MaxPool1d(2)
    ),
    "half precision": lambda: net(nn.ReLU, lambda: nn.MaxPool2d(3, 2, 1)).bfloat16(),
}


@pytest.mark.usefixtures("estimated")
@pytest.mark.parametrize("way", ["from_indices", "from_packed", "pooled"])
@pytest.mark.parametrize("case", MODELS)
def test_a_step_in_which_all_are_made_so_has_the_same_bits(case: str, way: str):
    torch.manual_seed(0)
    model = Loss(MODELS[case]())
    twin, given = copy.deepcopy(model), (torch.randn(4, 3, 25, 22).to(next(model.parameters()).dtype),)  # fmt: skip
    plan = lowtide.fit(model, given, budget="100%", rules=(Pools(),), **QUICK)
    if case == "half precision" and way != "from_indices":
        assert not any(op.name.endswith(("from_packed", "pooled")) for op in plan.graph.ops)
        return
    plan = choosing(plan, way)
    backward = [plan.graph.op[name] for name in plan.program.steps[1]]
    fused = [op for op in backward if op.of.startswith(("threshold", "hardtanh"))]
    assert len(fused) == (1 if case == "one dimension" else 3)
    assert not any(op.target == BACKWARD for op in backward)
    if way == "pooled":
        ran = {plan.graph.op[name].target for name in plan.program.steps[0]}
        assert not ran & {POOL, "lowtide.pack"}
    lowtide.apply(model, plan)
    assert not differences(twin, model, given)


def choosing(plan: Plan, way: str) -> Plan:
    """The plan that keeps everything and makes all gradients so that can be, and with "pooled" all pools, too."""
    ways = ("pooled", "from_packed") if way == "pooled" else (way,)
    search = Search(make_problem(plan.graph))
    problem, choice = search.problem, search.player.no_choice()
    for form in plan.graph.ops:
        of = plan.graph.op[form.of].target if form.rule else ""
        if form.name.endswith(ways) and of in (RELU[1], HARDTANH[1], POOL):
            op = problem.op_names.index(form.of)
            found = [[problem.op_names[i] for i in problem.parts[w]] for w in problem.ways[op]]
            choice[len(problem.storage_names) + op] = found.index([form.name])
    answers = search.player.play(problem.gaps.start_state.copy(), choice)
    assert answers is not None
    return replace(plan, program=search.program(answers))


def test_a_plan_uses_it_and_keeps_its_promise():
    torch.manual_seed(0)
    model = Loss(net(lambda: nn.ReLU(inplace=True), lambda: nn.MaxPool2d(2), width=32))
    twin, given = copy.deepcopy(model), (torch.randn(8, 3, 96, 96),)
    plan = lowtide.fit(model, given, budget="60%", seconds=2)
    ran = [plan.graph.op[name] for name in plan.program.steps[1]]
    assert any(op.rule == "pool" and op.of.startswith("threshold") for op in ran)
    assert plan.measured_peak is not None
    assert plan.measured_peak <= plan.budget
    assert not differences(twin, model, given)
