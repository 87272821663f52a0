"""Has a trace every op and, at every moment, the step's bytes?"""

from __future__ import annotations

import json

from lowtide.report.steps import observed, simulated
from lowtide.report.trace import trace
from tests.report.pictures import a_plan, a_profile


def test_ops_and_bytes_of_both_steps() -> None:
    plan = a_plan()
    steps = [simulated(plan.timeline, "planned"), simulated(plan.unplanned, "unplanned")]
    events = json.loads(trace(steps))["traceEvents"]
    for process, (step, timeline) in enumerate(zip(steps, (plan.timeline, plan.unplanned)), 1):
        mine = [e for e in events if e["pid"] == process]
        assert mine[0]["args"]["name"] == step.name
        ops = [e for e in mine if e["ph"] == "X" and e["tid"] == 2]
        assert [e["name"] for e in ops] == [
            timeline.graph.op[m.op].target for m in timeline.moments
        ]
        assert sum(e["dur"] for e in ops) <= 1e6 * step.seconds * 1.001
        counters = [e for e in mine if e["ph"] == "C"]
        assert max(sum(e["args"].values()) for e in counters) == timeline.peak
        assert sum(counters[-1]["args"].values()) == 0
        moments = [e["ts"] for e in counters]
        assert moments == sorted(set(moments))


def test_of_an_observed_step() -> None:
    profile = a_profile()
    events = json.loads(trace([observed(profile)]))["traceEvents"]
    counters = [sum(e["args"].values()) for e in events if e["ph"] == "C"]
    assert max(counters) == profile.peak
