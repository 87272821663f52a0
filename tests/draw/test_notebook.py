"""Objects show themselves in a notebook: as a picture that leaves the rest of the page alone, and in words."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest

from lowtide.draw.notebook import shown
from lowtide.ir.program import unplanned
from lowtide.plan.frontier import Frontier
from lowtide.plan.plan import Plan, plan_of
from lowtide.plan.profile import Block, Profile
from lowtide.sim.memory import simulate
from lowtide.solve.planner import solve
from tests.solve.builders import chain


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = chain(6)
    budget = simulate(graph, unplanned(graph)).peak * 8 // 10
    return plan_of(graph, budget, solve(graph, budget, seconds=0.2))


def picture_in(html: str) -> str:
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    svg = base64.b64decode(data).decode()
    ET.fromstring(svg)
    assert "<style" not in html, "it would be the whole page's"
    return svg


def test_words_are_escaped() -> None:
    assert shown("a < b") == "<pre>a &lt; b</pre>"


def test_a_plan_shows_before_after_and_budget(plan: Plan) -> None:
    svg = picture_in(plan._repr_html_())
    assert "unplanned: peak" in svg
    assert "planned: peak" in svg
    assert "; budget" in svg
    assert max(size for _, size in plan.timeline.points) == plan.peak
    assert plan.timeline.points[-1][0] == pytest.approx(plan.seconds)


def test_a_profile_shows_what_was_measured() -> None:
    block = Block(100, 0.0, 1.0, "activation", "layer")
    profile = Profile("Net", 1.0, 100, (block,), (("forward", 0.0),))
    svg = picture_in(profile._repr_html_())
    assert "measured: peak 100 B" in svg
    assert "budget" not in svg.partition("</style>")[2]


def test_a_frontier_shows_its_line(plan: Plan) -> None:
    svg = picture_in(Frontier((plan, plan))._repr_html_())
    assert "What each budget costs" in svg
