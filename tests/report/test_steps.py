"""A step in blocks adds up to what the simulator says at every moment, and a picture of few columns loses no peak."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.plan.profile import ENCODED, Block
from lowtide.report.sampling import fold_all, sample
from lowtide.report.steps import Step, aligned, observed, simulated
from lowtide.sim.memory import simulate
from lowtide.sim.timeline import KEPT
from tests.report.pictures import MIB, a_plan, a_profile
from tests.strategies import graphs, programs


def alive(step: Step, seconds: float) -> int:
    return sum(b.bytes for b in step.blocks if b.start <= seconds < b.end)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_blocks_add_up_to_the_simulators_bytes(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(programs(graph)))
    step = simulated(timeline, "planned")
    assert len(step.running) == len(timeline.moments)
    for running, moment in zip(step.running, timeline.moments):
        assert alive(step, running.start) == moment.during


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 40))
def test_no_column_loses_its_peak(data: st.DataObject, columns: int) -> None:
    graph = data.draw(graphs())
    timeline = simulate(graph, data.draw(programs(graph)))
    step = simulated(timeline, "planned")
    if not step.blocks:
        return
    sampled = sample(step, fold_all([step]), span=step.seconds, columns=columns)
    highest = max(alive(step, b.start) for b in step.blocks)
    assert sampled.instants[sampled.top].total == highest
    assert sum(block.bytes for block in sampled.at_peak) == highest
    places = [i.column for i in sampled.instants]
    assert places == sorted(set(places))
    for instant in sampled.instants:
        assert instant.total == alive(step, instant.seconds) == sum(instant.kinds)


def test_what_backward_reads_is_kept_from_the_start_and_a_mask_is_encoded():
    step = simulated(a_plan().timeline, "planned")
    kinds: Counter[str] = Counter()
    for block in step.blocks:
        kinds[block.kind] += 1
    assert kinds[ENCODED] == 1
    assert kinds["gradient"] == 4  # three of weights, and the tangent
    kept = [b for b in step.blocks if b.kind == KEPT]
    assert {b.layer for b in kept} == {"layers.0.fc", "layers.1.act", "layers.2.fc", "layers.2.act"}
    assert min(b.start for b in kept) < step.phases[1][1]
    assert [name for name, _ in step.phases] == ["forward", "backward"]


def test_steps_without_prices_count_ops():
    graph = a_plan().graph
    free = graph.with_ops(type(o)(o.name, o.target, o.inputs, o.outputs, o.segment) for o in graph.ops if not o.rule)  # fmt: skip
    from lowtide.ir.program import unplanned

    step = simulated(simulate(free, unplanned(free)), "unplanned")
    assert not step.timed
    assert step.seconds == 12


def test_a_profile_is_shown_as_it_was_observed():
    step = observed(a_profile())
    sampled = sample(step, fold_all([step]), span=1.0, columns=10)
    assert step.peak == 30 * MIB
    assert sampled.instants[sampled.top].running.op == "aten.mm"
    assert sampled.at_peak == step.blocks[:2]


def test_a_spike_among_many_blocks_is_seen_by_a_narrow_picture():
    blocks = [Block(1, i * 1e-3, (i + 1) * 1e-3, "temporary", f"l.{i}") for i in range(5000)]
    spike = Block(99, 3.3333, 3.33331, "op workspace", "l.7", "aten.sort")
    step = Step("s", 5.0, 100, (*blocks, spike), (("forward", 0.0),), ())
    sampled = sample(step, fold_all([step]), span=5.0, columns=30)
    assert sampled.instants[sampled.top].total == 100
    assert len(sampled.instants) <= 30


def test_an_observed_step_is_stretched_to_the_predicted_phases():
    step = Step("planned", 3.0, 1, (), (("forward", 0.0), ("backward", 2.0)), ())
    points = aligned(a_profile(), step)
    # Forward took 0.5 s and is drawn over 2; backward 0.4 s and is drawn over 1; the optimizer's 0.1 s are left out.
    assert [(round(t, 6), size // MIB) for t, size in points] == [(0, 10), (0.8, 30), (2.75, 20), (3, 20)]  # fmt: skip
