"""How can a real step run without leaving a trace? Buffers, frozen parameters, the batch, gradients and random generators are
put back.

A forward may write into a buffer, assign it anew, or update a frozen copy of the model (momentum encoders): all of that is
undone. Trained parameters are not copied: no forward writes into those, and a copy of all would weigh as much as the model.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

__all__ = ["preserved"]


@contextmanager
def preserved(module: nn.Module, batch: Any = ()) -> Iterator[None]:
    """Inside, gradients are None to begin with; afterwards everything is as it was found."""
    homes = [(m, dict(m._buffers)) for m in module.modules()]
    frozen = [p for p in module.parameters() if not p.requires_grad]
    given = [t for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor)]
    written = [(t, t.detach().clone()) for t in (*module.buffers(), *frozen, *given)]
    gradients = [(t, t.grad) for t in (*module.parameters(), *given) if t.is_leaf]
    devices = {
        t.device for t in (*module.parameters(), *module.buffers()) if t.device.type != "cpu"
    }
    state = torch.get_rng_state()
    states = {d: torch.get_device_module(d).get_rng_state(d) for d in devices}
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for owner, found in homes:
            owner._buffers.clear()
            owner._buffers.update(found)
        with torch.no_grad():
            for tensor, copy in written:
                if not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        torch.set_rng_state(state)
        for device, was in states.items():
            torch.get_device_module(device).set_rng_state(was, device)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
