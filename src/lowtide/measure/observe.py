"""How is a training step watched while somebody else runs it?

    with Observation({"": model}, batch, optimizer) as seen:
        seen.step()
        loss = model(*batch); loss.backward(); optimizer.step()
    seen.profile("Net")

Nothing is changed that decides how much memory the step takes: no tensor is held, no dispatch mode is active. Module hooks say which
layer runs, a function mode says which line of the user's code does, and the optimizer's hooks say when gradients and state are where. Modules that
are compiled get no hooks, because the compiler would notice and compile anew: of those that Lowtide lowered, `graph_runs` tells
the nodes; of others only the ops are known.

Whatever goes wrong while marks are made is swallowed and noted in the log: the user's step comes first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

import lowtide
from lowtide.ir.graph import Kind
from lowtide.measure.events import Recording, recorded
from lowtide.measure.lives import (
    Batch,
    Enter,
    Exit,
    Gone,
    GraphNode,
    GraphRuns,
    Known,
    Life,
    Line,
    Lives,
    Phase,
    Step,
)
from lowtide.measure.memory import model_device

__all__ = ["Observation", "compiled_modules", "graph_runs", "observing"]

log = logging.getLogger("lowtide")
_OURS = tuple(str(Path(package.__file__).parent) for package in (torch, lowtide))
_current: Observation | None = None


def observing() -> bool:
    return _current is not None


@contextmanager
def graph_runs(nodes: Callable[[], Sequence[GraphNode]]) -> Iterator[None]:
    """Tells whoever observes that a lowered graph runs, and what its nodes are, in order."""
    observation = _current
    if observation is None:
        yield
        return
    observation.mark(lambda: GraphRuns(nodes()))
    try:
        yield
    finally:
        observation.mark(lambda: GraphRuns(None))


class Observation:
    """A context: everything inside is observed. `models` by the prefix of their layers' names; "" for a single one."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        batch: Any = (),
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.models = dict(models)
        self.device = next((model_device(m) for m in self.models.values()), torch.device("cpu"))
        self.homes = dict(_homes(self.models))
        self.held = _held(self.models, batch, optimizer, self.homes)
        self.recording: Recording | None = None
        self.references: dict[int, StorageWeakRef] = {}
        self.seconds = 0.0
        self.end = 0
        self.lives: Lives | None = None
        self.failed = ""
        self._stack = ExitStack()

    def __enter__(self) -> Observation:
        global _current
        self._stack = ExitStack()
        self.references = _references(self.models, self.held)
        if not any(compiled_modules(m) for m in self.models.values()):
            self._stack.enter_context(_Lines(self))
        for path, module, root in _eager(self.models):
            self._hook(path, module, root)
        for handle in (
            register_optimizer_step_pre_hook(lambda o, *_: self._update_begins(o)),
            register_optimizer_step_post_hook(lambda o, *_: self._update_ends(o)),
        ):
            self._stack.callback(handle.remove)
        self.recording = self._recorded = self._stack.enter_context(recorded(self.device))
        self._before, _current = _current, self
        return self

    def __exit__(self, *error: object) -> None:
        global _current  # noqa: PLW0603
        self.note_gradients()
        self.mark(lambda: Phase("end"))
        _current = self._before
        self.recording = None
        self._stack.__exit__(None, None, None)

    # Told by whoever runs the step.

    def step(self) -> None:
        """A step begins."""
        self.note_gone()
        self.mark(Step)
        self.mark(lambda: Phase("forward"))

    def note_gradients(self) -> None:
        self.note_gone()
        self.mark(lambda: Known(Kind.GRADIENT, dict(self._gradients())))

    def note_gone(self) -> None:
        gone = [address for address, r in self.references.items() if r.expired()]
        for address in gone:
            del self.references[address]
        if gone:
            self.mark(lambda: Gone(frozenset(gone)))

    def mark(self, make: Callable[[], Any]) -> None:
        if self.recording is None:
            return
        try:
            self.recording.mark(make())
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"
            log.debug("a mark could not be made: %s", self.failed)

    # Hooks.

    def _hook(self, path: str, module: nn.Module, root: bool) -> None:
        def enters(_: nn.Module, args: Any, kwargs: Any) -> None:
            if root:
                self.note_gone()
                self.mark(lambda: Batch(frozenset(_plain_addresses((args, kwargs)))))
                if torch.is_grad_enabled():
                    self.mark(lambda: Phase("forward"))
            self.mark(lambda: Enter(path))

        def leaves(*_: Any) -> None:
            self.mark(Exit)

        try:
            before = module.register_forward_pre_hook(enters, prepend=True, with_kwargs=True)
            self._stack.callback(before.remove)
            after = module.register_forward_hook(leaves, always_call=True)
            self._stack.callback(after.remove)
        except Exception as error:  # script modules and the like take no hooks
            log.debug("%s is not observed: %s", path, error)

    def _update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        self.note_gradients()
        self.mark(lambda: Phase("optimizer"))

    def _update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        self.mark(lambda: Known(Kind.OPTIMIZER, dict(_state(optimizer, self.homes))))

    def _gradients(self) -> Iterator[tuple[int, str]]:
        for model in self.models.values():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    for address in _addresses(parameter.grad):
                        yield address, self.homes.get(id(parameter), "")

    def analysed(self) -> Lives:
        """Of what was observed."""
        if self.lives is None:
            held = [
                Life(address, size, 0, kind=kind, layer=layer)
                for address, (size, kind, layer) in self.held.items()
            ]
            self.lives = Lives(held).run(self._recorded.events)
            self.end = self._recorded.events[-1].time if self._recorded.events else 0
        return self.lives


class _Lines(TorchFunctionMode):
    """Marks the user's line before each call into torch."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation
        self.last = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch.compiler.is_compiling():
            line = _user_line()
            if line != self.last:
                self.last = line
                self.observation.mark(lambda: Line(line))
        return func(*args, **(kwargs or {}))


def _user_line() -> str:
    """The innermost frame outside torch and Lowtide."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def compiled_modules(model: nn.Module) -> list[nn.Module]:
    """Those whose call goes through a compiler."""
    return [m for m in model.modules() if _is_compiled(m)]


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or hasattr(module, "_orig_mod")


def _eager(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module, bool]]:
    for prefix, model in models.items():
        inside = {id(m) for c in compiled_modules(model) for m in c.modules()}
        for name, module in model.named_modules():
            if id(module) not in inside:
                yield _join(prefix, name), module, module is model


def _homes(models: Mapping[str, nn.Module]) -> Iterator[tuple[int, str]]:
    """The layer of each parameter and buffer."""
    for prefix, model in models.items():
        for name, tensor in (*model.named_buffers(), *model.named_parameters()):
            layer = name.rpartition(".")[0].replace("_orig_mod.", "").removesuffix("_orig_mod")
            yield id(tensor), _join(prefix, layer).rstrip(".")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _held(
    models: Mapping[str, nn.Module],
    batch: Any,
    optimizer: torch.optim.Optimizer | None,
    homes: Mapping[int, str],
) -> dict[int, tuple[int, str, str]]:
    """By address what exists before: bytes, kind, layer. A storage counts once, under the first kind that has it."""
    found: dict[int, tuple[int, str, str]] = {}

    def add(tensor: torch.Tensor, kind: str, layer: str) -> None:
        for address, size in _storages(tensor):
            found.setdefault(address, (size, kind, layer))

    for model in models.values():
        for parameter in model.parameters():
            kind = Kind.PARAMETER if parameter.requires_grad else Kind.BUFFER
            add(parameter, kind, homes.get(id(parameter), ""))
        for buffer in model.buffers():
            add(buffer, Kind.BUFFER, homes.get(id(buffer), ""))
    for tensor in _tensors(batch):
        add(tensor, Kind.BATCH, "")
    for model in models.values():
        for parameter in model.parameters():
            if parameter.grad is not None:
                add(parameter.grad, Kind.GRADIENT, homes.get(id(parameter), ""))
    if optimizer is not None:
        for parameter, state in optimizer.state.items():
            for tensor in _tensors(state):
                add(tensor, Kind.OPTIMIZER, homes.get(id(parameter), ""))
    return found


def _references(
    models: Mapping[str, nn.Module], held: Mapping[int, tuple[int, str, str]]
) -> dict[int, StorageWeakRef]:
    """Of what may be released during the step: gradients of the step before."""
    found = {}
    for model in models.values():
        for parameter in model.parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided:
                storage = gradient.untyped_storage()
                if storage.data_ptr() in held:
                    found[storage.data_ptr()] = StorageWeakRef(storage)
    return found


def _state(optimizer: torch.optim.Optimizer, homes: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for parameter, state in optimizer.state.items():
        for tensor in _tensors(state):
            for address in _addresses(tensor):
                yield address, homes.get(id(parameter), "")


def _plain_addresses(things: Any) -> Iterator[int]:
    """Of tensors that no op with gradients made."""
    for tensor in _tensors(things):
        if not tensor.requires_grad or tensor.is_leaf:
            yield from _addresses(tensor)


def _tensors(things: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(things) if isinstance(t, torch.Tensor)]


def _addresses(tensor: torch.Tensor) -> Iterator[int]:
    return (address for address, _ in _storages(tensor))


def _storages(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    if tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._indices())
        yield from _storages(tensor._values())
        return
    try:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            yield storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # opaque, or a wrapper without memory of its own
        return
