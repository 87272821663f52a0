"""What was done to each layer: every way is told from the others, with its reason, and the seconds add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.report.changes import ENCODE, INSTEAD, KEEP, RECOMPUTE, WORK, changes
from lowtide.rules import DEFAULT_RULES
from tests.report.pictures import MIB, a_plan


def by_layer(plan):
    return {change.layer: change for change in changes(plan)}


def test_seconds_add_up_to_the_overhead():
    plan = a_plan()
    added = sum(change.seconds for change in changes(plan))
    assert added == pytest.approx(plan.seconds - plan.unplanned_seconds)
    assert added == pytest.approx(1.1e-3)


def test_layers_alike_are_one_row():
    assert set(by_layer(a_plan())) == {"layers.0,2.fc x2", "layers.0-2.act x3"}


def test_each_way_is_told():
    found = by_layer(a_plan())
    act = found["layers.0-2.act x3"]
    assert act.ways[RECOMPUTE].count == 1
    assert act.ways[RECOMPUTE].bytes == 4 * MIB
    assert (act.ways[ENCODE].count, act.ways[ENCODE].bytes) == (1, MIB // 8)
    assert act.ways[KEEP].count == 2
    fc = found["layers.0,2.fc x2"]
    assert fc.ways[KEEP].bytes == 8 * MIB
    assert set(fc.ways) == {KEEP}


def test_ops_carry_the_rules_reason():
    (act,) = [c for c in changes(a_plan()) if "act" in c.layer]
    reason = next(rule.reason for rule in DEFAULT_RULES if rule.name == "mask")
    told = {(d.way, d.op): d for d in act.details}
    assert told[ENCODE, "lowtide.pack"].reason == reason
    assert told[WORK, "lowtide.mask_backward"].reason == reason
    assert told[INSTEAD, "aten.relu_backward"].seconds == pytest.approx(-1e-3)
    assert "again" in told[RECOMPUTE, "aten.relu.default"].reason


def test_a_plan_that_changes_nothing_adds_no_time():
    plan = a_plan()
    same = replace(plan, program=plan.unplanned.program)
    assert all(change.seconds == 0 and set(change.ways) == {KEEP} for change in changes(same))
