"""How does `torch.compile(model, backend="lowtide", options={"budget": "6GiB"})` plan? The door for people who compile already.

Dynamo calls the backend once for each graph it captures, with the same `options` object for all graphs of one `torch.compile` call,
recompilations included; so there is one `Session` per options object. It knows less than `lowtide.fit` does:

- There is no first step to look at. Each graph is planned when it is captured, with what earlier graphs hold at that moment counted in; one
  that ended in a graph break leaves half of the room to those that will follow. `lowtide.fit` plans them as one.
- A budget in percent is a share of each graph's own unplanned peak: the whole step's is not known. With graph breaks give bytes.
- Bytes that are no graph's input are unknown here: optimizer state, parameters that other graphs use, data beside the batch. Leave room for
  them in the budget, or use `lowtide.fit(optimizer=...)`. Nothing is measured afterwards.
- With dynamic shapes a graph is planned at the sizes it was captured with and guarded: a larger size is captured and planned anew, a
  smaller one runs the plan it finds. A dimension marked with `torch._dynamo.mark_dynamic` must allow that: give it `max=`.
- Recurrent layers reach a backend only under `torch._dynamo.config.allow_rnn = True`, which is the user's to set.

Options: `budget` (required), `allow`, `rules`, `seconds`, `solver`, as in `lowtide.fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from lowtide.api import make_options
from lowtide.errors import OptionError, did_you_mean
from lowtide.execute.backend import Backend
from lowtide.execute.fitting import make_session
from lowtide.execute.session import Options

__all__ = ["lowtide_backend"]

KNOWN = ("budget", "allow", "rules", "seconds", "solver")
_backends: dict[int, tuple[object, Backend]] = {}
"""For each options object, kept here so that no other gets its id, the backend with its session."""


def lowtide_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """What the entry point `torch_dynamo_backends: lowtide` names."""
    if mode is not None:
        raise OptionError(
            f"mode={mode!r} is an option of Inductor; the lowtide backend takes options={{...}}"
        )
    for name in unknown:
        raise OptionError(
            f"the lowtide backend takes no {name}={did_you_mean(name, ['options', 'mode'])}"
        )
    return backend_of(options, example_inputs)(gm, example_inputs)


def backend_of(options: Mapping[str, Any] | None, inputs: Sequence[Any]) -> Backend:
    found = _backends.get(id(options)) if options else None
    if found is None:
        session = make_session(checked(options or {}), _device(inputs), dict)
        session.one_by_one = True
        found = _backends[id(options)] = (options, Backend(session))
    return found[1]


def checked(options: Mapping[str, Any]) -> Options:
    for name in options:
        if name not in KNOWN:
            raise OptionError(
                f"the lowtide backend has no option {name!r}{did_you_mean(name, list(KNOWN))} "
                f"Known: {', '.join(KNOWN)}"
            )
    if "budget" not in options:
        raise OptionError(
            "the lowtide backend needs a budget: "
            'torch.compile(model, backend="lowtide", options={"budget": "6GiB"})'
        )
    return make_options(**options)


def forget() -> None:
    """Called by `torch._dynamo.reset()`: compiled code is gone, and what its sessions knew with it."""
    _backends.clear()


lowtide_backend.reset = forget  # type: ignore[attr-defined]


def _device(inputs: Sequence[Any]) -> torch.device:
    for tensor in inputs:
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")
