"""How does a script's module run its plan, and what happens when it cannot?

Through the compiled function, as after `lowtide.fit`, with two differences. A plan holds for its sizes and all smaller ones, and sizes that keep
changing become symbols, so batches of every length need few plans. And whatever the compiler cannot do is done by the script's own code: with the random
numbers it would have drawn, with one line that says why, and from then on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._dynamo.config
from torch import nn

from lowtide.errors import BudgetError, LowtideError, PlanMismatchError
from lowtide.execute.attach import Planned
from lowtide.execute.fitting import capture_words, from_the_compiler
from lowtide.execute.session import Session
from lowtide.integrations.script.ranks import together
from lowtide.measure.memory import model_device

__all__ = ["Door"]

_SHAPES = 8
"""Captured with the sizes they have; from then on a graph serves all smaller sizes."""


class Door(Planned):
    def __init__(
        self,
        module: nn.Module,
        session: Session,
        leave: Callable[[nn.Module, str], None],
        stop: Callable[[LowtideError], None],
    ) -> None:
        super().__init__(module, session)
        self.module = weakref.ref(module)
        self.leave, self.stop = leave, stop
        self.proven = False
        """It has run: what it raises now is the script's own."""
        self.shapes = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)
        states = () if self.proven else self.random_states()
        captured = len(self.session.pieces)
        try:
            with _whole_graphs():
                output = super().__call__(*args, **kwargs)
        except (BudgetError, PlanMismatchError) as error:
            return self.stop(error)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if self.proven and not isinstance(error, LowtideError) and not from_the_compiler(error):
                raise
            why = str(error) if isinstance(error, LowtideError) else capture_words(error)
            for device, state in states:
                _generator(device).set_rng_state(state)
        else:
            self.proven = self.session.trusted = True  # a saved plan has found its graph
            self.count(len(self.session.pieces) - captured)
            return output
        output = self.plain(*args, **kwargs)
        module = self.module()
        if module is not None:
            self.leave(module, why)
        return output

    def count(self, captured: int) -> None:
        """Sizes that keep changing become symbols."""
        self.shapes += captured > 0
        if captured and self.shapes == _SHAPES:
            self.compiled = self.compile(dynamic=True)

    def random_states(self) -> tuple[tuple[torch.device, torch.Tensor], ...]:
        module = self.module()
        devices = {torch.device("cpu"), *([model_device(module)] if module is not None else [])}
        return tuple((d, _generator(d).get_rng_state()) for d in devices)


def _whole_graphs() -> AbstractContextManager[object]:
    """Inside DDP the compiler cuts graphs where gradients are sent; one program for all saves more."""
    return torch._dynamo.config.patch(optimize_ddp=False) if together() else nullcontext()


def _generator(device: torch.device) -> Any:
    return torch if device.type == "cpu" else torch.get_device_module(device)
