"""The pictures show what the numbers say: no peak is lost, text is escaped, both colour schemes are there."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from lowtide.draw.charts import sparkline, timeline_svg

MIB = 2**20
BEFORE = [(0.0, 100 * MIB), (0.5, 900 * MIB), (0.6, 300 * MIB), (1.0, 100 * MIB)]
AFTER = [(0.0, 100 * MIB), (0.5, 400 * MIB), (1.2, 100 * MIB)]
SVG = "{http://www.w3.org/2000/svg}"


def drawing(**more: str) -> ElementTree.Element:
    return ElementTree.fromstring(timeline_svg(BEFORE, AFTER, 450 * MIB, **more))


def path_of(root: ElementTree.Element, style: str) -> str:
    return next(p.attrib["d"] for p in root.iter(f"{SVG}path") if p.attrib["class"] == style)


def heights(path: str) -> list[float]:
    return [float(y) for y in re.findall(r"V([\d.]+)", path)]


def test_it_is_well_formed_and_says_the_numbers():
    root = drawing(title="ResNet <50>")
    words = " ".join(root.itertext())
    assert "ResNet <50>" in words
    assert "900 MiB" in words
    assert "400 MiB" in words
    assert "450 MiB" in words
    assert "prefers-color-scheme: dark" in words


def test_higher_is_more_and_the_budget_lies_between():
    root = drawing()
    top_before, top_after = (min(heights(path_of(root, s))) for s in ("before", "after"))
    budget = float(path_of(root, "budget").split()[1].split("H")[0])
    assert top_before < budget < top_after


def test_the_filled_shape_is_closed_and_the_outline_ends_with_its_step():
    root = drawing()
    assert path_of(root, "after").endswith("Z")
    ends = [float(re.findall(r"H([\d.]+)", path_of(root, s))[-1]) for s in ("before", "after")]
    assert ends[0] < ends[1]


def test_a_short_peak_among_many_points_is_drawn():
    flat = [(i * 1e-5, 100 * MIB) for i in range(20_000)]
    spike = [*flat[:7_777], (0.07777, 900 * MIB), *flat[7_778:]]
    drawn = timeline_svg(spike, flat, 450 * MIB)
    again = timeline_svg([(0.0, 900 * MIB), (0.19999, 0)], flat, 450 * MIB)
    tops = [min(heights(path_of(ElementTree.fromstring(svg), "before"))) for svg in (drawn, again)]
    assert tops[0] == tops[1]
    assert len(drawn) < 20_000


def test_nothing_to_draw_is_drawn_too():
    ElementTree.fromstring(timeline_svg([], [], 1))
    assert sparkline([]) == ""


def test_a_sparkline_is_as_wide_as_asked_and_full_at_the_top():
    line = sparkline(BEFORE, width=40)
    assert len(line) == 40
    assert line[20] == "\u2588"
    assert "\u2588" not in sparkline(AFTER, width=40, top=900 * MIB)


@given(
    st.lists(st.tuples(st.floats(0, 1e-2), st.integers(0, 2**40)), min_size=1, max_size=50),
    st.integers(1, 2**40),
)
def test_any_timeline_can_be_drawn(steps: list[tuple[float, int]], budget: int):
    now, points = 0.0, []
    for gap, size in steps:
        points.append((now, size))
        now += gap
    ElementTree.fromstring(timeline_svg(points, points, budget))
    assert len(sparkline(points, width=20)) == 20
