"""Where does the memory of an unmodified script go? Its first training steps are observed while it runs.

A step begins with a trained module's call and ends when every optimizer has updated and the next call begins; without optimizers,
when a module is called again after its backward. Then the batch of that next call serves to capture the step for planning, and the script is
stopped unless it is to go on. A compiled module's first call compiles, so observing starts with its second.

`fake_script` runs nothing: the script's tensors are fake, and what its first training call would need is estimated.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lowtide.errors import LowtideError, OptionError
from lowtide.execute.faking import fake_profile
from lowtide.execute.profiling import capture, with_graph
from lowtide.integrations.script.launch import Launch, launch
from lowtide.integrations.script.trained import Call, Watcher, watching
from lowtide.ir.graph import Graph
from lowtide.measure.observe import Observation, compiled_modules
from lowtide.measure.profiling import profile_of
from lowtide.plan.profile import Profile

__all__ = ["Observed", "fake_script", "observe_script"]

log = logging.getLogger("lowtide")
_CALLS = 64
"""A step has no more calls of trained modules than this, whatever its optimizers do."""


class _Enough(SystemExit):
    """The way out of a script whose steps have been seen."""


@dataclass(frozen=True)
class Observed:
    profile: Profile
    ended: SystemExit | None
    """How the script ended, if it was not stopped."""


def observe_script(what: Launch, *, steps: int, go_on: bool, graph: bool) -> Observed:
    observer = _Observer(steps, go_on, graph)
    with watching(observer):
        try:
            ended = launch(what)
        finally:
            observer.close()
    return _observed(observer, what, ended)


def fake_script(what: Launch, device: str = "cpu") -> Observed:
    """Nothing is computed: the script makes fake tensors up to its first training step, which is captured."""
    faker = _Faker(device)
    with watching(faker), FakeTensorMode(allow_non_fake_inputs=True):
        ended = launch(what)
    return _observed(faker, what, ended)


def _observed(observer: _Observer | _Faker, what: Launch, ended: SystemExit | None) -> Observed:
    if observer.failed is not None:
        raise observer.failed
    if observer.profile is None:
        raise OptionError(
            f"{what.target} ended without a training step: no module was called with gradients and then had its backward\n"
            "     try   lowtide.profile(model, (batch,)) in Python, with the model and a batch"
        )
    return Observed(observer.profile, None if isinstance(ended, _Enough) else ended)


class _Faker(Watcher):
    def __init__(self, device: str) -> None:
        self.device = device
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.profile: Profile | None = None
        self.failed: LowtideError | None = None

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.add(optimizer)

    def call_begins(self, call: Call) -> None:
        if not call.trains:
            return
        mine = [o for o in self.optimizers if _updates(o, call.module)]
        optimizer = mine[0] if len(mine) == 1 else None
        try:
            self.profile = fake_profile(
                call.module, call.args, call.kwargs, optimizer, None, self.device
            )
        except LowtideError as error:
            self.failed = error
        raise _Enough(0)


class _Observer(Watcher):
    def __init__(self, steps: int, go_on: bool, graph: bool) -> None:
        self.steps, self.go_on, self.graph = steps, go_on, graph
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.updated: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.seen: Observation | None = None
        self.names: dict[int, str] = {}
        self.count = 0
        """Steps that have begun."""
        self.calls = 0
        self.backward = False
        self.profile: Profile | None = None
        self.failed: LowtideError | None = None

    # What is told.

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.add(optimizer)

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.add(optimizer)
        self.updated.add(optimizer)
        if self.seen is not None and self.count == self.steps and self.is_over():
            with self.survived():
                self.seen.note_state(optimizer)
                self.seen.finish()

    def backward_begins(self, call: Call) -> None:
        self.backward = True

    def call_begins(self, call: Call) -> None:
        if not call.trains:
            return
        if self.profile is None and self.failed is None:
            with self.survived():
                self.observe(call)
        self.add_graph(call)
        if self.failed is not None or (self.profile is not None and not self.go_on):
            raise _Enough(0)

    @contextmanager
    def survived(self) -> Iterator[None]:
        """What goes wrong in observing is not the script's: it is said at the end."""
        try:
            yield
        except LowtideError as error:
            self.failed = error
        except Exception as error:
            log.exception("observing failed")
            self.failed = LowtideError(f"observing failed with {type(error).__name__}: {error}")

    def observe(self, call: Call) -> None:
        if self.seen is None and self.count == 0:
            if not (compiled_modules(call.module) and call.number == 0):
                self.start(call)
        elif self.seen is not None and self.is_over():
            self.next_step(call)
        if self.seen is not None and id(call.module) not in self.names:
            self.seen.add(self.name(call), call.module)
        self.calls += 1

    def is_over(self) -> bool:
        if not self.backward:
            return False
        known = set(self.optimizers)
        return known <= set(self.updated) or self.calls >= _CALLS

    # Steps.

    def start(self, call: Call) -> None:
        self.seen = Observation({self.name(call): call.module}, (), self.optimizers)
        self.seen.__enter__()
        self.seen.note_batch((call.args, call.kwargs))
        self.begin_step()

    def begin_step(self) -> None:
        assert self.seen is not None
        self.count += 1
        self.calls, self.backward = 0, False
        self.updated.clear()
        self.seen.step()

    def next_step(self, call: Call) -> None:
        if self.count < self.steps:
            self.begin_step()
            return
        self.end()

    def add_graph(self, call: Call) -> None:
        """From the batch of the next step's call."""
        if self.graph and self.profile is not None and self.profile.graph is None:
            self.graph = False
            self.profile = with_graph(self.profile, lambda: self.captured(call))

    def captured(self, call: Call) -> Graph:
        if len(self.names) != 1 or id(call.module) not in self.names:
            names = ", ".join(self.names.values())
            raise OptionError(
                f"the step trains several models ({names}); lowtide run plans them together"
            )
        mine = [o for o in self.optimizers if _updates(o, call.module)]
        return capture(
            call.module, call.args, call.kwargs, mine[0] if len(mine) == 1 else None, None
        )

    def end(self) -> None:
        seen, self.seen = self.seen, None
        if seen is None:
            return
        seen.__exit__(None, None, None)
        if self.backward:
            self.profile = self.named(profile_of(seen, " + ".join(self.names.values())))

    def close(self) -> None:
        """The script has ended, however it did."""
        with self.survived():
            self.end()
        if self.graph and self.profile is not None:
            why = {
                "not captured": "the script ended with its first step",
                **self.profile.environment,
            }
            self.profile = replace(self.profile, environment=why)

    # Names.

    def name(self, call: Call) -> str:
        """The class's, numbered where there are several: the first part of every layer's path."""
        module = getattr(call.module, "_orig_mod", call.module)
        name = type(module).__name__
        number = sum(1 for known in self.names.values() if known.split("#")[0] == name)
        self.names[id(call.module)] = f"{name}#{number + 1}" if number else name
        return self.names[id(call.module)]

    def named(self, profile: Profile) -> Profile:
        """Of a single model, paths begin inside it."""
        if len(self.names) != 1:
            return profile
        (name,) = self.names.values()
        blocks = [replace(b, layer=_inside(b.layer, name)) for b in profile.blocks]
        return replace(profile, blocks=tuple(blocks))


def _inside(layer: str, name: str) -> str:
    return "" if layer == name else layer.removeprefix(f"{name}.")


def _updates(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> bool:
    mine = {id(p) for p in module.parameters()}
    return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])
