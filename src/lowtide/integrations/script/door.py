"""How does a script's module run its plan, and what happens when it cannot?

Through the compiled function, as after `lowtide.fit`, with two differences. Sizes that change become symbols: a plan holds for its sizes and all
smaller ones, so batches of every length need few plans. And whatever the compiler cannot do is done by the script's own code: with the random
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

from lowtide.errors import BudgetError, LowtideError
from lowtide.execute.attach import Planned
from lowtide.execute.fitting import capture_words, from_the_compiler
from lowtide.execute.session import Session
from lowtide.integrations.script.ranks import together
from lowtide.measure.memory import model_device

__all__ = ["Door"]


class Door(Planned):
    dynamic = None

    def __init__(
        self,
        module: nn.Module,
        session: Session,
        leave: Callable[[nn.Module, str], None],
        stop: Callable[[BudgetError], None],
    ) -> None:
        super().__init__(module, session)
        self.module = weakref.ref(module)
        self.leave, self.stop = leave, stop
        self.proven = False
        """It has run: what it raises now is the script's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)
        states = () if self.proven else self.random_states()
        try:
            with _whole_graphs():
                output = super().__call__(*args, **kwargs)
        except BudgetError as error:
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
            self.proven = True
            return output
        output = self.plain(*args, **kwargs)
        module = self.module()
        if module is not None:
            self.leave(module, why)
        return output

    def random_states(self) -> tuple[tuple[torch.device, torch.Tensor], ...]:
        module = self.module()
        devices = {torch.device("cpu"), *([model_device(module)] if module is not None else [])}
        return tuple((d, _generator(d).get_rng_state()) for d in devices)


def _whole_graphs() -> AbstractContextManager[object]:
    """Inside DDP the compiler cuts graphs where gradients are sent; one program for all saves more."""
    return torch._dynamo.config.patch(optimize_ddp=False) if together() else nullcontext()


def _generator(device: torch.device) -> Any:
    return torch if device.type == "cpu" else torch.get_device_module(device)
