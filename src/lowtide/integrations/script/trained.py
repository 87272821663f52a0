"""Which modules does a script train, and when? Found by watching, without a change to the script.

`watching(watcher)` tells the watcher of every outermost call of a module that runs with gradients, of the moment backward
reaches what the call returned, and of every optimizer's update. A module that is called while another one runs is part of that one.

Outermost is told by taking our door away while a module runs: inside, `nn.Module.__call__` is PyTorch's own, so inner modules cost nothing
and the compiler sees what it expects. Calls in other processes (data loaders' workers) and other threads are not watched.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

__all__ = ["Call", "Watcher", "tensors_in", "watching"]

_WRAPPERS = (DistributedDataParallel,)
"""Modules that only pass a call on: what they wrap is what is trained."""


@dataclass(eq=False)
class Call:
    """One outermost call of a module, with gradients on."""

    module: nn.Module
    number: int
    """How many such calls of this module came before it: 0 is the first."""
    trains: bool
    """The module has parameters that need gradients; else it is a loss or the like that is given something that does."""
    args: tuple[Any, ...] = field(default=(), repr=False)
    """While the call runs; empty afterwards, as nothing may be kept alive by being watched."""
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)
    backwards: int = 0
    """How often backward has reached what it returned."""


class Watcher:
    """What may be told; each of these does nothing unless it is overridden."""

    def call_begins(self, call: Call) -> None: ...

    def call_ends(self, call: Call, output: Any) -> None:
        """Not told when the call raised."""

    def backward_begins(self, call: Call) -> None:
        """A gradient has reached what the call returned."""

    def evaluates(self) -> None:
        """A module, not necessarily an outermost one, is called with gradients off."""

    def differentiating_twice(self) -> AbstractContextManager[object]:
        """Entered while gradients are made with a graph of their own (`create_graph=True`)."""
        return nullcontext()

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """It is not finished: its parameters and options are known when it first steps."""

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None: ...

    def update_ends(self, optimizer: torch.optim.Optimizer) -> None: ...


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    watched = _Watched(watcher)
    watched.open()
    try:
        yield
    finally:
        watched.close()


class _Watched:
    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self.undo: list[Callable[[], object]] = []
        self.plain: Callable[..., Any] = nn.Module.__call__
        self.door = self.make_door()

    def open(self) -> None:
        nn.Module.__call__ = self.door  # type: ignore[method-assign]
        self.undo = [
            register_optimizer_step_pre_hook(
                lambda o, a, k: self.here() and self.watcher.update_begins(o)
            ).remove,
            register_optimizer_step_post_hook(
                lambda o, a, k: self.here() and self.watcher.update_ends(o)
            ).remove,
            _replaced(torch.optim.Optimizer, "__init__", self.telling_of_optimizers),
            _replaced(torch.autograd, "backward", partial(self.telling_of_graphs, 3)),
            _replaced(torch.autograd, "grad", partial(self.telling_of_graphs, 4)),
        ]

    def close(self) -> None:
        nn.Module.__call__ = self.plain  # type: ignore[method-assign]
        for one in self.undo:
            one()

    def here(self) -> bool:
        return os.getpid() == self.process and threading.get_ident() == self.thread

    def make_door(self) -> Callable[..., Any]:
        plain = self.plain

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if torch.compiler.is_compiling() or _inside() or not self.here():
                return plain(module, *args, **kwargs)
            if not torch.is_grad_enabled():
                self.watcher.evaluates()
                return plain(module, *args, **kwargs)
            if isinstance(module, _WRAPPERS):
                return plain(module, *args, **kwargs)
            nn.Module.__call__ = plain  # type: ignore[method-assign]
            try:
                return self.called(module, args, kwargs)
            finally:
                nn.Module.__call__ = self.door  # type: ignore[method-assign]

        return __call__

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trains = any(p.requires_grad for p in module.parameters())
        if not trains and not any(t.requires_grad for t in tensors_in((args, kwargs))):
            return self.plain(module, *args, **kwargs)
        number = self.calls.get(module, 0)
        self.calls[module] = number + 1
        call = Call(module, number, trains, args, kwargs)
        self.watcher.call_begins(call)
        output = self.plain(module, *args, **kwargs)
        call.args, call.kwargs = (), {}
        self.await_backward(call, output)
        self.watcher.call_ends(call, output)
        return output

    def await_backward(self, call: Call, output: Any) -> None:
        def reached(_: Any) -> None:
            call.backwards += 1
            self.watcher.backward_begins(call)

        for node in {t.grad_fn for t in tensors_in(output) if t.grad_fn is not None}:
            node.register_prehook(reached)

    def telling_of_optimizers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(optimizer, *args, **kwargs)
            if self.here():
                self.watcher.optimizer_made(optimizer)

        return __init__

    def telling_of_graphs(self, place: int, original: Callable[..., Any]) -> Callable[..., Any]:
        """`place`: of `create_graph` among the arguments."""

        def differentiate(*args: Any, **kwargs: Any) -> Any:
            wanted = kwargs.get("create_graph", len(args) > place and args[place])
            twice = wanted and self.here()
            with self.watcher.differentiating_twice() if twice else nullcontext():
                return original(*args, **kwargs)

        return differentiate


def _inside() -> bool:
    """The compiler looks at what it captured, or a backward runs: then modules are called that are part of others. Both have a state of the thread
    of their own, which ends with them."""
    captures = torch._guards.TracingContext.try_get() is not None
    return captures or torch._C._current_graph_task_id() != -1


def _replaced(
    owner: Any, name: str, by: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """-> what puts it back."""
    original = getattr(owner, name)
    new = by(original)
    new.__name__, new.__doc__, new.__wrapped__ = name, original.__doc__, original  # type: ignore[attr-defined]
    setattr(owner, name, new)
    return lambda: setattr(owner, name, original)


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """Also inside dataclasses, which pytrees take for leaves."""
    for leaf in pytree.tree_leaves(thing):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors_in([getattr(leaf, f.name, None) for f in fields(leaf)])
