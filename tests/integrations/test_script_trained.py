"""Are the trained modules of ordinary training code found, and nothing else?"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lowtide.integrations.script.trained import Call, Watcher, watching


class Notes(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, what: str, call: Call) -> None:
        self.lines.append(f"{what} {type(call.module).__name__} {call.number}")

    def call_begins(self, call: Call) -> None:
        assert call.args
        if call.trains:
            self.note("call", call)

    def call_ends(self, call: Call, output: Any) -> None:
        assert not call.args
        assert isinstance(output, torch.Tensor)

    def backward_begins(self, call: Call) -> None:
        if call.trains:
            self.note("backward", call)

    @contextmanager
    def differentiating_twice(self) -> Iterator[None]:
        self.lines.append("twice")
        yield

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self.lines.append("optimizer")

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self.lines.append("update")


def test_a_step_with_a_loss_outside_the_model() -> None:
    notes, criterion = Notes(), nn.MSELoss()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with watching(notes):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            criterion(model(torch.ones(2, 3)), torch.ones(2, 1)).backward()
            optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 3))
    step = ["call Sequential {}", "backward Sequential {}", "update"]
    assert notes.lines == ["optimizer", *(s.format(i) for i in range(2) for s in step)]


def test_two_models_and_a_gradient_of_a_gradient() -> None:
    notes, one, two = Notes(), nn.Linear(2, 2), nn.Bilinear(2, 2, 1)
    with watching(notes):
        x = one(torch.ones(1, 2))
        y = two(x, torch.ones(1, 2, requires_grad=True))
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y + g.sum()).sum().backward()
    assert notes.lines == [
        "call Linear 0", "call Bilinear 0", "twice", "backward Bilinear 0", "backward Bilinear 0", "backward Linear 0",
    ]  # fmt: skip


def test_everything_is_as_it_was_afterwards() -> None:
    def doors() -> list[Any]:
        return [nn.Module.__call__, torch.optim.Optimizer.__init__, torch.autograd.grad]

    before, model = doors(), nn.Linear(1, 1)
    with watching(Watcher()):
        assert doors() != before
        copy.deepcopy(model)(torch.ones(1, 1))
        assert nn.Module.__call__ is not before[0]
    assert doors() == before


def test_a_call_that_fails_leaves_the_door_in_place() -> None:
    notes, model = Notes(), nn.Linear(2, 2)
    with watching(notes):
        for size in (3, 2):
            try:
                model(torch.ones(1, size))
            except RuntimeError:
                notes.lines.append("failed")
    assert notes.lines == ["call Linear 0", "failed", "call Linear 1"]


def test_modules_that_a_backward_calls_are_part_of_it():
    inner = nn.Linear(3, 3)

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            inner(gradient)
            return gradient * 2

    class Evaluations(Watcher):
        count = 0

        def evaluates(self) -> None:
            self.count += 1

    watcher = Evaluations()
    with watching(watcher):
        Looks.apply(torch.ones(3, requires_grad=True)).sum().backward()
        assert watcher.count == 0
        with torch.no_grad():
            inner(torch.ones(3))
        assert watcher.count == 1
