"""With which call does an op run? The captured call itself, or the form of it that a rule proposed.

A rule names an op's inputs and outputs and nothing else; what to call for it, in terms of the captured call, is said here, once,
for whoever prices it and whoever runs it. A form that this very call does not have (a transposed convolution's, one with
symbolic sizes) is None: then the op is not offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.errors import GraphError
from lowtide.ir.graph import Graph, Op
from lowtide.kernels.convolution import input_gradient, output_padding, parameter_gradients

__all__ = ["Copied", "Form", "form_of", "without_formless"]


@dataclass(frozen=True)
class Copied:
    """In a form's arguments: a value that a rule added, the copy of a captured tensor in another layout."""

    name: str
    node: fx.Node
    memory_format: torch.memory_format


class Form(NamedTuple):
    target: Callable[..., Any]
    args: tuple[Any, ...]
    """With nodes of the captured joint graph, and `Copied` for values that rules added."""
    kwargs: dict[str, Any]

    def arguments(
        self, node: Callable[[fx.Node], Any], copied: Callable[[Copied], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """With what these say in the places of nodes and copies."""
        args = tuple(copied(a) if isinstance(a, Copied) else fx.map_arg(a, node) for a in self.args)
        return args, fx.map_arg(self.kwargs, node)


def without_formless(captured: Captured, graph: Graph) -> Graph:
    """The graph without the proposals for calls that have no such form."""
    gone = {o.name for o in graph.ops if o.rule and form_of(captured, o) is None}
    return graph.without(gone) if gone else graph


def form_of(captured: Captured, op: Op) -> Form | None:
    node = captured.nodes[op.of or op.name]
    plain = Form(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    if op.rule in ("", "replay"):
        return plain
    if op.rule not in _FORMS:
        raise GraphError(f"nothing is known of how to run {op.name}, an op of rule {op.rule!r}")
    return _FORMS[op.rule](captured, op, plain)


def _masked(captured: Captured, op: Op, plain: Form) -> Form:
    """A backward whose last argument says which gradients to make: only those of this op's outputs."""
    return Form(plain.target, (*plain.args[:-1], _mask(captured, op, plain)), plain.kwargs)


def _mask(captured: Captured, op: Op, plain: Form) -> list[bool]:
    wanted = {captured.elements[name] for name in op.outputs}
    return [index in wanted for index in range(len(plain.args[-1]))]


def _transposed(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, given, weight, _, stride, padding, dilation, transposed, _, groups, _ = plain.args
    shapes = [tuple(n.meta["val"].shape[2:]) for n in (given, gradient, weight)]
    numbers = [*stride, *padding, *dilation, *(n for shape in shapes for n in shape)]
    if transposed or not all(type(n) is int for n in numbers):
        return None
    missing = output_padding(*shapes, stride, padding, dilation)
    return Form(input_gradient, (gradient, weight, stride, padding, dilation, missing, groups), {})


def _channels_last(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, given, weight, *rest = plain.args
    copies = [_copy(op, node) for node in (gradient, given)]
    if any(copy is None for copy in copies):
        return None
    if op.target == "lowtide.copy":
        (copy,) = (c for c in copies if c is not None and c.node.name == op.inputs[0])
        return Form(
            torch.ops.aten.clone.default, (copy.node,), {"memory_format": copy.memory_format}
        )
    mask = _mask(captured, op, plain)
    return Form(parameter_gradients, (*copies, weight, *rest[:-1], mask), {})


def _copy(op: Op, node: fx.Node) -> Copied | None:
    """As `rules/convolution.py` names it; None where the tensor has no such layout, or lies in it already."""
    tensor = node.meta["val"]
    if tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    return Copied(f"{op.of}.{node.name}.{op.rule}", node, torch.channels_last)


_FORMS: dict[str, Callable[[Captured, Op, Form], Form | None]] = {
    "split": _masked,
    "transposed": _transposed,
    "channels_last": _channels_last,
}
