"""What is one training step of a model, from outside? Forward, loss, backward on the given batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lowtide.errors import NoGradientError, NoTensorOutputError

__all__ = ["Step", "start_of_backward"]

Loss = Callable[..., torch.Tensor]


class Step:
    """Callable: runs one step. Gradients are left in the parameters' `.grad`."""

    def __init__(
        self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Loss | None
    ) -> None:
        self.model, self.args, self.kwargs, self.loss = model, tuple(args), dict(kwargs), loss

    def __call__(self) -> None:
        output = self.forward()
        if self.loss is not None:
            output = self.loss(output, *self.args)
        backward(output)

    def forward(self) -> Any:
        return self.model(*self.args, **self.kwargs)


def start_of_backward(output: Any) -> list[torch.Tensor]:
    """The tensors backward starts from: a `.loss` if there is one, else every output that needs a gradient."""
    loss = getattr(output, "loss", None)
    leaves = [loss] if isinstance(loss, torch.Tensor) else pytree.tree_leaves(output)
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    if not tensors:
        found = type(output).__name__
        raise NoTensorOutputError(
            f"the model returned {found}, which holds no tensor, so there is nothing to start backward from. "
            "Return the loss or the outputs as tensors (also inside tuples and dicts), or pass loss=..."
        )
    differentiable = [t for t in tensors if t.requires_grad]
    if not differentiable:
        raise NoGradientError(
            "no output of the model needs a gradient, so there is no backward to plan. Is everything frozen, detached "
            "or under torch.no_grad()?"
        )
    return differentiable


def backward(output: Any) -> None:
    """From the sum of everything, as from a loss: gradients of the outputs that we made ourselves would live as long as we hold
    them, a tensor more than in the user's step."""
    torch.autograd.backward([_sum(t) for t in start_of_backward(output)])


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.real.sum() if tensor.is_complex() else tensor.sum()
