"""How is a training step watched while somebody else runs it?

    with Observation({"": model}, batch, [optimizer]) as seen:
        seen.step()
        loss = model(*batch); loss.backward(); optimizer.step()
    profile_of(seen, "Net")         from measure/profiling.py

Nothing is changed that decides how much memory the step takes: no tensor is held, no dispatch mode is active. Module hooks say which
layer runs, a function mode says which line of the user's code does, and the optimizer's hooks say when gradients and state are where. Modules that
are compiled get no hooks, because the compiler would notice and compile anew: of those that Lowtide lowered, `graph_runs` tells
the nodes; of others only the ops are known.

Whatever goes wrong while marks are made is swallowed and noted in the log: the user's step comes first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from torch.overrides import TorchFunctionMode, _get_current_function_mode

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
    Held,
    Known,
    Line,
    Lives,
    Phase,
    Step,
)
from lowtide.measure.memory import model_device

__all__ = ["Observation", "compiled_modules", "graph_runs", "observing"]

log = logging.getLogger("lowtide")
_OURS = tuple(str(Path(package.__file__).parent) for package in (torch, lowtide))
_Found = tuple[torch.Tensor, str, str]
"""A tensor, its kind and its layer."""
_current: Observation | None = None


def observing() -> bool:
    return _current is not None and _current.recording is not None


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
    """A context: everything inside is observed. `models` by the prefix of their layers' names; "" for a single one.

    What `models`, `batch` and the `optimizers`' states hold at the beginning is known, whatever else there is is not counted.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        batch: Any = (),
        optimizers: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        self.models: dict[str, nn.Module] = {}
        self.device = next((model_device(m) for m in models.values()), torch.device("cpu"))
        self.homes: dict[int, str] = {}
        self.recording: Recording | None = None
        self.references: dict[int, StorageWeakRef] = {}
        """Of what may be released meanwhile."""
        self.end = 0
        self.lives: Lives | None = None
        self._given = (dict(models), batch, list(optimizers))
        self._stack, self._session = ExitStack(), ExitStack()

    def __enter__(self) -> Observation:
        global _current
        self.recording = self._recorded = self._session.enter_context(recorded(self.device))
        models, batch, optimizers = self._given
        self._given = ({}, (), [])
        if not any(compiled_modules(m) for m in models.values()):
            lines = _Lines(self)
            lines.__enter__()
            self._stack.callback(lines.leave)
        for handle in (
            register_optimizer_step_pre_hook(lambda o, *_: self._update_begins(o)),
            register_optimizer_step_post_hook(lambda o, *_: self.note_state(o)),
        ):
            self._stack.callback(handle.remove)
        self._before, _current = _current, self
        for prefix, model in models.items():
            self.add(prefix, model)
        for optimizer in optimizers:
            self._hold(_state(optimizer, self.homes))
        self.note_batch(batch)
        return self

    def __exit__(self, *error: object) -> None:
        global _current  # noqa: PLW0603
        self.finish()
        _current = self._before
        self._stack.close()

    def finish(self) -> None:
        """Stop recording. Hooks stay until the context is left: this may be called from one."""
        if self.recording is not None:
            self.note_gradients()
            self.mark(lambda: Phase("end"))
            self.recording = None
            self._session.close()

    # Told by whoever runs the step.

    def add(self, prefix: str, model: nn.Module) -> None:
        """One more model, that has been there from the beginning."""
        self.models[prefix] = model
        self.homes.update(_homes(prefix, model))
        self._hold(_of_model(model, self.homes))
        for path, module, root in _eager(prefix, model):
            self._hook(path, module, root)

    def note_batch(self, batch: Any) -> None:
        self._hold((tensor, Kind.BATCH, "") for tensor in _tensors(batch))

    def _hold(self, found: Iterable[_Found]) -> None:
        """A storage counts once, under the first kind that has it."""
        held: dict[int, tuple[int, str, str]] = {}
        for tensor, kind, layer in found:
            for storage in _storages(tensor):
                address = storage.data_ptr()
                held.setdefault(address, (storage.nbytes(), kind, layer))
                if kind in (Kind.GRADIENT, Kind.BATCH):
                    self.references[address] = StorageWeakRef(storage)
        self.mark(lambda: Held(held))

    def step(self) -> None:
        """A step begins."""
        self.note_gone()
        self.mark(Step)
        self.mark(lambda: Phase("forward"))

    def note_gradients(self) -> None:
        self.note_gone()
        self.mark(lambda: Known(Kind.GRADIENT, _layers(self._gradients())))

    def note_state(self, optimizer: torch.optim.Optimizer) -> None:
        self.mark(lambda: Known(Kind.OPTIMIZER, _layers(_state(optimizer, self.homes))))

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
            log.debug("a mark could not be made: %s: %s", type(error).__name__, error)

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

    def _gradients(self) -> Iterator[_Found]:
        for model in self.models.values():
            yield from _gradients(model, self.homes)

    def analysed(self) -> Lives:
        """Of what was observed."""
        if self.lives is None:
            self.lives = Lives().run(self._recorded.events)
            self.end = self._recorded.events[-1].time if self._recorded.events else 0
        return self.lives


class _Lines(TorchFunctionMode):
    """Marks the user's line before each call into torch."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation
        self.last = ""

    def leave(self) -> None:
        """The user's code may have entered other modes meanwhile; then this one stays, and says nothing."""
        if _get_current_function_mode() is self:
            self.__exit__(None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.observation.recording is not None and not torch.compiler.is_compiling():
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


def _eager(prefix: str, model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    inside = {id(m) for c in compiled_modules(model) for m in c.modules()}
    for name, module in model.named_modules():
        if id(module) not in inside:
            yield _join(prefix, name), module, module is model


def _homes(prefix: str, model: nn.Module) -> Iterator[tuple[int, str]]:
    """The layer of each parameter and buffer."""
    for name, tensor in (*model.named_buffers(), *model.named_parameters()):
        layer = name.rpartition(".")[0].replace("_orig_mod.", "").removesuffix("_orig_mod")
        yield id(tensor), _join(prefix, layer).rstrip(".")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _of_model(model: nn.Module, homes: Mapping[int, str]) -> Iterator[_Found]:
    for parameter in model.parameters():
        kind = Kind.PARAMETER if parameter.requires_grad else Kind.BUFFER
        yield parameter, kind, homes.get(id(parameter), "")
    for buffer in model.buffers():
        yield buffer, Kind.BUFFER, homes.get(id(buffer), "")
    yield from _gradients(model, homes)


def _gradients(model: nn.Module, homes: Mapping[int, str]) -> Iterator[_Found]:
    for parameter in model.parameters():
        if parameter.grad is not None:
            yield parameter.grad, Kind.GRADIENT, homes.get(id(parameter), "")


def _state(optimizer: torch.optim.Optimizer, homes: Mapping[int, str]) -> Iterator[_Found]:
    for parameter, state in optimizer.state.items():
        for tensor in _tensors(state):
            yield tensor, Kind.OPTIMIZER, homes.get(id(parameter), "")


def _layers(found: Iterable[_Found]) -> dict[int, str]:
    return {address: layer for tensor, _, layer in found for address in _addresses(tensor)}


def _plain_addresses(things: Any) -> Iterator[int]:
    """Of tensors that no op with gradients made."""
    for tensor in _tensors(things):
        if not tensor.requires_grad or tensor.is_leaf:
            yield from _addresses(tensor)


def _tensors(things: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(things) if isinstance(t, torch.Tensor)]


def _addresses(tensor: torch.Tensor) -> Iterator[int]:
    return (storage.data_ptr() for storage in _storages(tensor))


def _storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    if tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._indices())
        yield from _storages(tensor._values())
        return
    try:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            yield storage
    except (NotImplementedError, RuntimeError):  # opaque, or a wrapper without memory of its own
        return
