"""The page is one file that needs nothing else, stays small, and shows what is in a file as words, never as markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.plan.plan import Plan
from lowtide.plan.profile import Block, Profile
from lowtide.report.curve import Curve, Spot
from lowtide.report.data import as_data
from lowtide.report.page import MARK, page
from lowtide.report.picture import Picture, picture_of
from lowtide.report.terminal import lines_of, plain
from tests.report.pictures import EVIL, MIB, a_graph, a_plan, a_profile
from tests.strategies import graphs, programs

CURVE = Curve(
    line=(Spot("", 20 * MIB, 0.03), Spot("", 30 * MIB, 0.02), Spot("", 9000 * MIB, 0.018)),
    baselines=(Spot("Echo", 25 * MIB, 0.025),),
    chosen=Spot("this plan", 30 * MIB, 0.02),
    budget=40 * MIB,
    seconds=0.018,
)
VOID = {"meta", "img", "br", "link", "input"}


class Reader(HTMLParser):
    """Every element with its attributes and text; what is open at the end is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self.open[-1] if self.open else "", []).append(data)

    def ids(self) -> list[str]:
        return [found["id"] or "" for _, found in self.tags if "id" in found]

    def said(self) -> str:
        return " ".join(w for tag, words in self.words.items() if tag not in ("script", "style") for w in words)  # fmt: skip


def pictures(evil: str = "") -> dict[str, Picture]:
    return {
        "plan": picture_of(a_plan(evil=evil), f"net{evil}", curve=CURVE, measured=a_profile(evil)),
        "graph": picture_of(a_graph(evil=evil), f"net{evil}"),
        "profile": picture_of(a_profile(evil), f"net{evil}"),
    }


@pytest.mark.parametrize("kind", ["plan", "graph", "profile"])
def test_it_is_well_formed_and_has_its_sections(kind: str):
    picture = pictures()[kind]
    text = page(picture)
    found = Reader(text)
    sections = ["timeline", "frontier", "holders", "changes", "trust"]
    assert [i for i in found.ids() if i in sections] == [
        s for s in sections if s != "changes" or kind == "plan"
    ]
    assert len(found.ids()) == len(set(found.ids()))
    assert MARK in text[:200]
    assert picture.verdict.headline in found.said()
    assert "prefers-color-scheme: dark" in text


def test_the_verdict_and_the_numbers_are_there():
    plan = a_plan()
    said = Reader(page(pictures()["plan"])).said()
    for words in ("Fits", "Same bits", "activation encoded", "layers.0-2.act x3", "budget 40.0 MiB", "run again from what was kept"):  # fmt: skip
        assert words in said
    assert f"peak {plan.peak / MIB:.1f} MiB" in said


def test_what_does_not_fit_says_so():
    plan = a_plan()
    small = replace(plan, budget=plan.peak - 1)
    assert picture_of(small, "net").verdict.headline == "Does not fit"
    measured = replace(plan, measured_peak=plan.budget + 1)
    assert picture_of(measured, "net").verdict.tone == "bad"


@pytest.mark.parametrize("kind", ["plan", "graph", "profile"])
def test_it_loads_nothing(kind: str):
    text = page(pictures()[kind])
    found = Reader(text)
    assert not [tag for tag, _ in found.tags if tag in ("link", "img", "iframe", "object", "base")]
    assert not [a for _, a in found.tags if {"src", "href", "srcset"} & set(a)]
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", text)
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("kind", ["plan", "graph", "profile"])
def test_words_from_files_are_no_markup(kind: str):
    text = page(pictures(EVIL)[kind])
    found = Reader(text)
    assert not [tag for tag, _ in found.tags if tag == "img"]
    assert text.count("<script") == text.count("</script>") == 2
    assert EVIL in found.said()
    assert not [name for _, a in found.tags for name in a if name.startswith("on")]


def test_the_data_is_json_that_adds_up():
    picture = pictures(EVIL)["plan"]
    found = Reader(page(picture))
    data = json.loads(found.words["script"][0])
    for step, sampled in zip(data["steps"], picture.steps):
        assert step["at"] == sorted(step["at"])
        assert len(step["at"]) == len(step["instants"])
        for _, total, op, sums, held in step["instants"]:
            assert sum(sums) == total
            assert sum(held[2::3]) <= total
            assert op < len(data["ops"])
        assert step["instants"][step["top"]][1] == sampled.step.peak


def test_ten_thousand_ops_stay_small():
    text = page(picture_of(a_plan(blocks=2000), "large"))
    assert len(text.encode()) < 10**6
    layers = [f"deep.{i % 700}.part{i % 9}.{i % 31}" for i in range(30_000)]
    blocks = tuple(
        Block(1000 + i % 7919, i * 1e-4, i * 1e-4 + 0.5 + (i % 13) * 0.1, "temporary" if i % 3 else "gradient", layer, "aten.mul", "train.py:1")
        for i, layer in enumerate(layers)
    )  # fmt: skip
    wide = Profile("Wide", 4.9, 10**8, blocks, (("forward", 0.0),))
    assert len(page(picture_of(wide, "wide")).encode()) < 10**6


def test_script_and_style_are_small():
    folder = Path(page.__code__.co_filename).parent
    assert (folder / "page.js").stat().st_size < 40_000
    assert (folder / "page.css").stat().st_size < 40_000


@pytest.mark.parametrize("kind", ["plan", "graph", "profile"])
def test_text_and_json_say_the_same(kind: str):
    picture = pictures()[kind]
    data = json.loads(json.dumps(as_data(picture)))
    assert data["kind"] == kind
    peak = data["steps"][0]["holders"]
    assert (
        sum(row["bytes"] for row in peak) == data["steps"][0]["peak"] == picture.steps[0].step.peak
    )
    text = plain(lines_of(picture, "fits: well\nsecond line"))
    assert text.startswith("fits: well\nsecond line")
    if kind != "profile":  # prints itself
        assert "who holds the peak" in text
        assert "\u2588" in text
    if kind == "plan":
        assert "Echo" in text
        assert len(data["frontier"]["line"]) == 3
        assert {c["layer"] for c in data["changes"]} == {"layers.0,2.fc x2", "layers.0-2.act x3"}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_step_can_be_drawn(data: st.DataObject):
    graph = data.draw(graphs())
    plan = Plan(graph, data.draw(programs(graph)), 100, "feasible", "search", 0.1, 0.1, 10)
    flat = Spot("flat", plan.peak, plan.seconds)
    curve = Curve((flat,), (flat,), flat, plan.budget, plan.unplanned_seconds)
    for picture in (picture_of(plan, "any", curve=curve), picture_of(graph, "any")):
        Reader(page(picture))
        json.dumps(as_data(picture))
        assert plain(lines_of(picture, str(plan)))


def test_nothing_to_show_is_shown_too():
    empty = Profile("Nothing", 0.0, 0, (), ())
    Reader(page(picture_of(empty, "nothing")))
    lines_of(picture_of(empty, "nothing"), str(empty))


def test_a_row_opens_to_its_layers_and_a_layer_to_what_made_it():
    (rows, _) = picture_of(a_plan(), "net").holders
    folded = next(row for row in rows if row.layer == "layers.0-2.fc x3")
    assert {m.layer for m in folded.members} == {f"layers.{i}.fc" for i in range(3)}
    assert sum(m.bytes for m in folded.members) == folded.bytes
    single = picture_of(a_plan(blocks=1), "net").holders[0]
    opened = next(row for row in single if row.layer == "layers.0.fc")
    assert [m.layer for m in opened.members] == [
        "aten.mm.default train.py:0",
        "there before the step",
    ]
