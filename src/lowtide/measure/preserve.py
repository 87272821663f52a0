"""How can a real step run without leaving a trace? Buffers, gradients and random generators are put back afterwards."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["preserved"]


@contextmanager
def preserved(module: nn.Module) -> Iterator[None]:
    """Inside, gradients are None to begin with; afterwards everything is as it was found."""
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    gradients = [(p, p.grad) for p in module.parameters()]
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
        with torch.no_grad():
            for buffer, copy in buffers:
                if not torch.equal(buffer, copy):
                    buffer.data.copy_(copy)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        torch.set_rng_state(state)
        for device, was in states.items():
            torch.get_device_module(device).set_rng_state(was, device)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
