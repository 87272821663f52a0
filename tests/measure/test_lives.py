"""From the order of events alone: what an allocation was, and who made it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from lowtide.ir.graph import Kind
from lowtide.measure.events import Event, What
from lowtide.measure.lives import (
    Batch,
    Enter,
    Exit,
    Gone,
    GraphNode,
    GraphRuns,
    Held,
    Known,
    Life,
    Line,
    Lives,
    Step,
)

ENGINE = "autograd::engine::evaluate_function: AddmmBackward0"


class Story:
    """Events, one a nanosecond."""

    def __init__(self) -> None:
        self.clock: Iterator[int] = count(1)
        self.events: list[Event] = []

    def __call__(self, what: What, **more: object) -> None:
        self.events.append(Event(what, next(self.clock), 1, **more))  # type: ignore[arg-type]

    def begin(self, name: str, sequence: int = -1) -> None:
        self(What.BEGIN, name=name, sequence=sequence)

    def end(self, name: str) -> None:
        self(What.END, name=name)

    def memory(self, address: int, size: int) -> None:
        self(What.MEMORY, address=address, bytes=size)

    def mark(self, mark: object) -> None:
        self(What.MARK, mark=mark)

    def told(self) -> dict[int, Life]:
        """The last life at each address."""
        self.lives = Lives().run(self.events)
        return {life.address: life for life in self.lives.all}

    def lives_at(self, address: int) -> list[Life]:
        self.told()
        return [life for life in self.lives.all if life.address == address]


def test_a_step():
    story = Story()
    story.mark(Held({1: (100, Kind.PARAMETER, "head")}))
    story.mark(Step())
    story.mark(Enter("head"))
    story.mark(Line("net.py:3"))
    story.begin("aten::linear", 7)
    story.begin("aten::addmm", 7)
    story.memory(10, 40)
    story.memory(11, 8)
    story.memory(11, -8)
    story.end("aten::addmm")
    story.end("aten::linear")
    story.mark(Exit())
    story.begin("aten::relu", 8)
    story.memory(12, 16)
    story.end("aten::relu")
    story.memory(12, -16)
    story.begin(ENGINE, 7)
    story.begin("aten::mm")
    story.memory(13, 100)
    story.end("aten::mm")
    story.memory(10, -40)
    story.end(ENGINE)
    story.mark(Known(Kind.GRADIENT, {13: "head"}))
    lives = story.told()
    assert (lives[10].op, lives[10].layer, lives[10].source) == ("aten::addmm", "head", "net.py:3")
    assert lives[10].kept
    assert lives[11].workspace
    assert not lives[12].kept
    assert not lives[12].workspace
    assert lives[12].layer == ""
    assert (lives[13].kind, lives[13].layer, lives[13].source) == ("gradient", "head", "net.py:3")
    assert lives[13].backward
    assert story.lives.peaks == [240]


def test_an_address_is_used_again_and_old_memory_goes():
    story = Story()
    story.mark(Held({1: (100, Kind.GRADIENT, ""), 2: (7, Kind.BATCH, "")}))
    story.mark(Step())
    story.mark(Gone(frozenset({1})))
    story.memory(1, 50)
    story.memory(1, 60)  # a release that nobody reported
    story.mark(Step())
    found = [(life.bytes, life.end is not None) for life in story.lives_at(1)]
    assert found == [(100, True), (50, True), (60, False)]
    assert story.lives.peaks == [107, 67]


def test_a_batch_is_what_no_layer_made():
    story = Story()
    story.memory(1, 4)
    story.mark(Enter("made"))
    story.memory(2, 4)
    story.mark(Exit())
    story.mark(Batch(frozenset({1, 2})))
    lives = story.told()
    assert (lives[1].kind, lives[2].kind) == (Kind.BATCH, "")


def test_nodes_of_a_lowered_graph_name_what_they_make():
    story = Story()
    story.mark(GraphRuns([GraphNode("a", "x.py:1", False), GraphNode("b", "x.py:2", True)]))
    for number, address in ((0, 1), (1, 2)):
        story.begin(f"## {number} ##")
        story.begin("lowtide::pack")
        story.memory(address, 8)
        story.end("lowtide::pack")
        story.end(f"## {number} ##")
    story.mark(GraphRuns(None))
    story.memory(3, 8)
    lives = story.told()
    assert [(x.layer, x.source, x.encoded) for x in lives.values()] == [
        ("a", "x.py:1", False),
        ("b", "x.py:2", True),
        ("", "", False),
    ]
