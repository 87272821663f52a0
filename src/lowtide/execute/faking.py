"""What would a step need that nobody can run here? Captured on fake tensors, priced from a data sheet.

The model may be anywhere: on the meta device, made of fake tensors, or real. Its structure is copied, every tensor of it becomes a fake one, and
no element is ever read or allocated. The step is captured as on a CPU, whatever device prices it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.capture.fake import capture_fake
from lowtide.cost.analytic import sheet_named
from lowtide.cost.estimated import estimated
from lowtide.ir.graph import Graph, Kind
from lowtide.measure.memory import predicted_state_bytes
from lowtide.plan.estimate import estimated_profile
from lowtide.plan.profile import Profile
from lowtide.rules import DEFAULT_RULES, add_makers

__all__ = ["fake_profile"]

Loss = Callable[..., torch.Tensor]


class _Step(nn.Module):
    def __init__(self, model: nn.Module, kwargs: Mapping[str, Any], loss: Loss | None) -> None:
        super().__init__()
        self.model, self.kwargs, self.loss = model, dict(kwargs), loss

    def forward(self, *args: Any) -> Any:
        output = self.model(*args, **self.kwargs)
        return output if self.loss is None else self.loss(output, *args)


def fake_profile(
    model: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | None,
    loss: Loss | None,
    device: str = "cpu",
) -> Profile:
    """`device`: whose data sheet prices the ops."""
    sheet = sheet_named(device)
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    plain = getattr(model, "_orig_mod", model)

    def make() -> tuple[nn.Module, tuple[Any, ...]]:
        given, more = _faked((args, dict(kwargs)))
        return _Step(_fake_copy(plain), more, loss), given

    graph = _inside(capture_fake(make))
    rules = [rule for rule in DEFAULT_RULES if not rule.probed]
    graph = estimated(add_makers(graph, rules), sheet)
    state = predicted_state_bytes(optimizer) if optimizer is not None else 0
    if state:
        graph = replace(graph, held={**graph.held, str(Kind.OPTIMIZER): state})
    environment = {"captured": "on fake tensors", "costs": sheet.name, "torch": torch.__version__}
    return estimated_profile(graph, type(plain).__name__, environment)


def _fake_copy(model: nn.Module) -> nn.Module:
    """Under a fake mode. Tied tensors stay tied."""
    known: dict[int, Any] = {}
    for parameter in model.parameters():
        known[id(parameter)] = nn.Parameter(_fake(parameter), parameter.requires_grad)
    for buffer in model.buffers():
        known[id(buffer)] = _fake(buffer)
    return deepcopy(model, known)


def _faked(things: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, _fake, things)


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu"
    )
    floating = made.is_floating_point() or made.is_complex()
    return made.requires_grad_(tensor.requires_grad and tensor.is_leaf and floating)


def _inside(graph: Graph) -> Graph:
    """Layers by their paths in the model, not in the step around it."""

    def path(layer: str) -> str:
        return "" if layer == "model" else layer.removeprefix("model.")

    values = tuple(replace(v, layer=path(v.layer)) for v in graph.values)
    return replace(graph, values=values).with_ops(
        replace(op, layer=path(op.layer)) for op in graph.ops
    )
