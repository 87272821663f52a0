"""Do the known methods do what their papers say, and are their programs programs?"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.ir.graph import Graph
from lowtide.ir.program import Program, unplanned
from lowtide.ir.storages import fold
from lowtide.sim.memory import Timeline, simulate
from lowtide.solve.baselines import BASELINES, QUICK_BASELINES
from lowtide.solve.baselines.chen import chen
from lowtide.solve.baselines.echo import echo, echo_recomputed, is_heavy
from lowtide.solve.baselines.keep_all import keep_all
from lowtide.solve.baselines.keeping import program_keeping
from lowtide.solve.baselines.torch_knapsack import torch_knapsack, torch_saved
from tests.solve.builders import (
    ADD,
    BACKWARD,
    FORWARD,
    MM,
    SIN,
    TANH,
    Step,
    chain,
    lstm,
    resnet,
    run,
)


def kept_bytes(timeline: Timeline) -> int:
    """Bytes that exist between forward and backward, parameters and batch left out."""
    size = fold(timeline.graph).bytes
    return sum(size[s] for s in timeline.kept[FORWARD])


# Keep all, and the table.


def test_the_table_is_ordered_and_literal() -> None:
    assert list(QUICK_BASELINES) == ["keep all", "echo", "chen", "torch knapsack"]
    assert list(BASELINES) == [*QUICK_BASELINES, "checkmate", "monet"]


def test_keep_all_is_the_captured_program() -> None:
    graph = chain(10)
    assert keep_all(graph, 1) == unplanned(graph)


# Chen.


def test_chen_grows_with_the_square_root() -> None:
    peak = {n: run(chain(n), chen(chain(n), 0)).peak for n in (25, 100, 400)}
    assert peak[100] <= 100 * 2.2 * 10
    assert 1.8 <= peak[100] / peak[25] <= 2.2
    assert 1.8 <= peak[400] / peak[100] <= 2.2


def test_chen_costs_less_than_one_forward() -> None:
    graph = chain(100)
    forward = sum(o.seconds for o in graph.captured if o.segment == FORWARD)
    extra = simulate(graph, chen(graph, 0)).seconds - simulate(graph, unplanned(graph)).seconds
    assert 0.5 * forward < extra < forward


def test_chen_never_drops_the_last_stretch() -> None:
    """Backward starts with it. Many lines, because a cut could fall on the end of some, as on that of 1, 1, 2."""
    for sizes in itertools.product((1, 2, 4), repeat=4):
        step = Step()
        value = step.parameter("w", 0)
        for i, size in enumerate(sizes):
            value = step.op(f"f{i}", SIN, [value], size)
        assert chen(step.graph(value), 0).counts[value] == 1, sizes


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_chen_meets_a_budget_and_uses_it(share: float) -> None:
    graph = resnet(4, stages=((3, 64, 56), (4, 128, 28)))
    whole = simulate(graph, unplanned(graph))
    smallest = simulate(graph, chen(graph, 0))
    timeline = run(graph, chen(graph, int(share * whole.peak)))
    assert timeline.peak <= share * whole.peak
    assert timeline.seconds <= smallest.seconds
    if share == 1.0:
        assert timeline.seconds == whole.seconds


def test_chen_keeps_what_is_alive_across_a_cut_branches_too() -> None:
    """A skip over the whole line crosses every cut."""
    step = Step()
    x = skip = step.op("skip", SIN, [step.parameter("w", 0)], 100, saves=[])
    for i in range(16):
        x = step.op(f"f{i}", SIN, [x], 100, saves=[x])
    graph = step.graph(step.op("sum", ADD, [x, skip], 100, saves=[]))
    timeline = run(graph, chen(graph, 0))
    assert "skip" in timeline.kept[FORWARD]
    assert timeline.program.counts["skip"] == 1
    assert timeline.peak < simulate(graph, unplanned(graph)).peak


# Echo: the known answers of its authors.


def test_echo_recomputes_nothing_of_an_rnn_cell() -> None:
    """FC + FC -> add -> tanh: two inputs weigh more than the sum, the sum as much as its tanh."""
    step = Step()
    a = step.op(
        "a",
        "aten.addmm.default",
        [step.batch("x", 64), step.parameter("wa", 64)],
        4096,
        9,
        saves=["x"],
    )
    b = step.op(
        "b",
        "aten.addmm.default",
        [step.batch("y", 64), step.parameter("wb", 64)],
        4096,
        9,
        saves=["y"],
    )
    graph = step.graph(step.op("z", TANH, [step.op("sum", ADD, [a, b], 4096, saves=[])], 4096))
    assert echo_recomputed(graph) == frozenset()
    assert echo(graph, 0) == unplanned(graph)


def mlp_attention(times: int) -> Graph:
    """Scores of a source against one query per step, each through broadcast-add and tanh: small, big, small."""
    step = Step()
    source, v = step.batch("x", times * 4096), step.parameter("v", 4096)
    scores = []
    for t in range(times):
        query = step.parameter(f"y{t}", 4096)
        added = step.op(f"add{t}", ADD, [source, query], times * 4096, saves=[])
        tanh = step.op(f"tanh{t}", TANH, [added], times * 4096)
        scores.append(step.op(f"score{t}", MM, [tanh, v], times, 9, saves=[tanh, v]))
    return step.graph(*scores)


def test_echo_recomputes_all_of_attention() -> None:
    graph = mlp_attention(5)
    assert echo_recomputed(graph) == {f"{op}{t}" for op in ("add", "tanh") for t in range(5)}
    program = echo(graph, 0)
    timeline = run(graph, program)
    assert timeline.kept[FORWARD] == frozenset()
    assert program.counts["score0"] == 1


def test_attention_under_echo_holds_as_much_for_many_steps_as_for_few() -> None:
    def sources_alive(times: int, program: Callable[[Graph], Program]) -> float:
        graph = mlp_attention(times)
        timeline = simulate(graph, program(graph))
        return (timeline.peak - timeline.base) / graph.value["x"].bytes

    assert sources_alive(20, unplanned) > sources_alive(5, unplanned) + 14
    assert sources_alive(20, lambda g: echo(g, 0)) < sources_alive(5, lambda g: echo(g, 0)) + 1


def test_echo_feeds_a_recomputed_input_to_the_gradient_of_a_heavy_op() -> None:
    step = Step()
    y = step.op("y", TANH, [step.parameter("x", 4096)], 4096)
    z = step.op("z", TANH, [y], 4096)
    graph = step.graph(
        step.op("fc", "aten.linear.default", [z, step.parameter("w", 64)], 4096, 9, saves=[z, "w"])
    )
    assert echo_recomputed(graph) == {"z"}
    program = echo(graph, 0)
    assert run(graph, program).kept[FORWARD] == {"y"}
    assert program.steps[BACKWARD] == ("z", "fc.backward", "z.backward", "y.backward")


def test_echo_still_pays_for_inputs_that_someone_else_reads() -> None:
    """As the RNN cell, but a gradient reads `b`: keeping the sum releases `a` only, and pays for the sum and for `b`."""
    step = Step()
    a = step.op("a", MM, [step.batch("x", 64), step.parameter("wa", 64)], 4096, 9, saves=["x"])
    b = step.op("b", MM, [step.batch("y", 64), step.parameter("wb", 64)], 4096, 9, saves=["y"])
    added = step.op("sum", ADD, [a, b], 4096, saves=[b])
    graph = step.graph(step.op("z", TANH, [added], 4096))
    assert echo_recomputed(graph) == {"sum", "z"}


def test_echo_on_resnet_152() -> None:
    """Measured: bytes that exist between forward and backward (parameters and batch left out), batch 32, float32."""
    graph = resnet(32)
    whole, timeline = simulate(graph, unplanned(graph)), run(graph, echo(graph, 0))
    assert 4 * 2**30 < kept_bytes(whole) < 8 * 2**30
    assert kept_bytes(timeline) < 0.6 * kept_bytes(whole)
    convolutions = sum(o.target == "aten.convolution.default" for o in graph.captured)
    assert convolutions == 155
    assert all(n == 1 for op, n in timeline.program.counts.items() if op.endswith(".conv"))
    # The peak falls less: the residual stream of a stage is recomputed at once and then held.
    assert timeline.peak - timeline.base < 0.7 * (whole.peak - whole.base)


def test_echo_keeps_cell_states_and_gates_and_recomputes_hidden_states() -> None:
    steps = 6
    recomputed = echo_recomputed(lstm(steps))
    assert recomputed.isdisjoint(f"{gate}{t}" for gate in "ifgo" for t in range(1, steps + 1))
    assert recomputed.isdisjoint(f"c{t}" for t in range(1, steps - 1))
    assert recomputed >= {f"{name}{t}" for name in ("h", "tc") for t in range(1, steps + 1)}
    assert "stacked" in recomputed


def test_echo_has_one_program_whatever_the_budget() -> None:
    graph = mlp_attention(3)
    assert echo(graph, 1) == echo(graph, 10**12)


@pytest.mark.parametrize(
    ("target", "heavy"),
    [
        ("aten.mm.default", True),
        ("aten::addmm", True),
        ("aten._scaled_mm.default", True),
        ("aten.bmm.default", True),
        ("aten.convolution.default", True),
        ("aten.conv2d.default", True),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", True),
        ("aten.mkldnn_rnn_layer.default", True),
        ("lowtide.lstm_layer.default", True),
        ("aten.upsample_bilinear2d.default", False),
        ("aten.comm.default", False),
        ("aten._native_batch_norm_legit_functional.default", False),
        ("aten.tanh.default", False),
        ("tanh", False),
    ],
)
def test_heavy_ops_are_told_by_the_op_name(target: str, heavy: bool) -> None:
    assert is_heavy(target) is heavy


# Torch's knapsack.


def weighted(sizes: list[int], seconds: list[int]) -> Graph:
    """Independent values that backward reads, each from the same parameter."""
    step = Step()
    w = step.parameter("w", 1)
    made = [
        step.op(f"f{i}", SIN, [w], size, time) for i, (size, time) in enumerate(zip(sizes, seconds))
    ]
    return step.graph(step.op("sum", ADD, made, 1, saves=[]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(0, 9)), min_size=1, max_size=7),
    st.sampled_from([0.1, 0.3, 0.5, 0.8]),
)
def test_the_knapsack_is_the_best_of_all_subsets(
    items: list[tuple[int, int]], ratio: float
) -> None:
    # Multiples of 1/10000 of the whole, so that rounding does not enter.
    filler = 10_000 - sum(size for size, _ in items)
    sizes, seconds = [*(s for s, _ in items), filler], [*(t for _, t in items), 0]
    saved = [int(name[1:]) for name in torch_saved(weighted(sizes, seconds), ratio)]
    room = round(10_000 * ratio)
    assert sum(sizes[i] for i in saved) <= room
    everything = range(len(sizes))
    best = max(
        sum(seconds[i] for i in subset)
        for count in range(len(sizes) + 1)
        for subset in itertools.combinations(everything, count)
        if sum(sizes[i] for i in subset) <= room
    )
    assert sum(seconds[i] for i in saved) == best


def test_a_tight_knapsack_leaves_out_the_right_one() -> None:
    graph = weighted([50, 30, 20], [5, 4, 3])
    assert torch_saved(graph, 1.0) == {"f0", "f1", "f2"}
    assert torch_saved(graph, 0.8) == {"f0", "f1"}
    assert torch_saved(graph, 0.5) == {"f1", "f2"}
    assert torch_saved(graph, 0.0) == frozenset()


def test_what_takes_no_time_to_make_is_not_saved_below_one() -> None:
    assert torch_saved(weighted([50, 30, 20], [5, 0, 0]), 0.9) == {"f0"}


def test_the_knob_is_no_peak_but_the_sweep_finds_what_fits() -> None:
    graph = resnet(8, stages=((3, 64, 56), (4, 128, 28)))
    whole = simulate(graph, unplanned(graph))
    nothing = simulate(graph, program_keeping(graph, torch_saved(graph, 0.0)))
    half = simulate(graph, program_keeping(graph, torch_saved(graph, 0.5)))
    assert half.peak < nothing.peak, "saving nothing recomputes all of it at once"
    found = run(graph, torch_knapsack(graph, half.peak))
    assert found.peak <= half.peak
    assert found.seconds <= half.seconds
    assert run(graph, torch_knapsack(graph, whole.peak)).seconds == whole.seconds
