"""What is a form? A call that stands for an op, in terms of the captured call and of what rules added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.ir.graph import Op

__all__ = ["Added", "Form", "FormOf", "dense", "gradient_mask"]


class Form(NamedTuple):
    target: Callable[..., Any]
    args: tuple[Any, ...]
    """With nodes of the captured joint graph, and `Added` for values that rules added."""
    kwargs: dict[str, Any]
    elements: Mapping[str, int] = MappingProxyType({})
    """Of a call that makes several, among them values that a rule added: which ones these are."""

    def arguments(
        self, node: Callable[[fx.Node], Any], added: Callable[[Added], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """With what these say in the places of nodes and added values."""
        args = tuple(added(a) if isinstance(a, Added) else fx.map_arg(a, node) for a in self.args)
        return args, fx.map_arg(self.kwargs, node)

    def call(self, node: Callable[[fx.Node], Any]) -> Any:
        """Run it on what stands for each node; added values are made on the way."""
        args, kwargs = self.arguments(node, lambda added: added.make(node))
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class Added:
    """In a form's arguments: a value that a rule added, and the call that makes it from captured tensors."""

    name: str
    form: Form

    def make(self, node: Callable[[fx.Node], Any]) -> Any:
        made = self.form.call(node)
        return made[self.form.elements[self.name]] if self.form.elements else made


FormOf = Callable[[Captured, Op, Form], Form | None]
"""How an op of a rule runs, from the captured call it is another form of; None where this call has no such form."""


def gradient_mask(captured: Captured, op: Op, plain: Form) -> list[bool]:
    """Of a backward's gradients, those that this op makes."""
    wanted = {captured.elements[name] for name in op.outputs}
    return [index in wanted for index in range(len(plain.args[-1]))]


def dense(tensor: torch.Tensor) -> bool:
    """Every element at a place of its own, and none between them; sizes known."""
    if not all(type(n) is int for n in (*tensor.shape, *tensor.stride())):
        return False
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True
