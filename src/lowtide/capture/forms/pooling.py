"""Max-pools that make four bits per window, and their gradients without the pool's input, from a few bits per window, and with those of the activation before the pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

import lowtide.kernels.max_pool  # noqa: F401 (registers an op)
from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form
from lowtide.ir.graph import Op
from lowtide.kernels.loops import COMPILED
from lowtide.kernels.pooling import LOOPED
from lowtide.rules.pooling import BLOCKING, POOLED, SAME

__all__ = ["pool"]

_ops = torch.ops.lowtide


def pool(captured: Captured, op: Op, plain: Form) -> Form | None:
    last = captured.nodes[op.name.rpartition(".")[0]]
    blocks = str(last.target) in BLOCKING
    backward = _original(last.args[0]) if blocks else last
    gradient, given, *geometry, indices = backward.args
    plane = list(given.meta["val"].shape[-2:])
    made = last.meta["val"]
    dense = all(n.meta["val"].is_contiguous() for n in (gradient, given, indices, last))
    if not dense or not all(type(n) is int for n in (*made.shape, *given.meta["val"].shape)):
        return None
    rest = _blocked(captured, op, last, given) if blocks else ()
    if rest is None:
        return None
    sizes = list(made.shape)
    if op.name.endswith((".without_input", ".from_indices")):
        read = (gradient, indices, sizes, plane, *map(_list, geometry[:4]), geometry[4], *rest)
        return Form(_ops.pool_gradient_from_indices.default, read, {})
    kernel, stride, padding, dilation = (_pair(n) for n in (geometry[0], geometry[1] or geometry[0], *geometry[2:4]))  # fmt: skip
    small = kernel[0] * kernel[1] <= 16 and dilation == [1, 1] and kernel[1] <= plane[1]
    if not small or not COMPILED or made.device.type != "cpu" or made.dtype not in LOOPED:
        return None
    if op.target == POOLED:
        source, result = plain.args[0], captured.tensors[op.outputs[0]].meta["val"]
        if not source.meta["val"].is_contiguous():
            return None
        read = (source, *result.shape[-2:], kernel, stride, padding)
        return Form(_ops.max_pool.default, read, {}, {op.outputs[1]: 1})
    packed = Form(_ops.pack_indices.default, (indices, plane[1], kernel, stride, padding), {})
    if op.target == "lowtide.pack":
        return packed
    four_bits = Added(f"{backward.name}.packed", packed)
    read = (gradient, four_bits, sizes, plane, kernel, stride, padding, *rest)
    return Form(_ops.pool_gradient.default, read, {})


def _blocked(
    captured: Captured, op: Op, last: fx.Node, given: fx.Node
) -> tuple[fx.Node, float, float | None] | None:
    """The pool's output, and between which numbers it lets a gradient through."""
    output = captured.tensors[op.inputs[1]]
    numbers = [float(n) for n in last.args[2:]]
    activated = _original(given)
    if _original(last.args[1]) is not activated:  # backward reads what the activation read
        same = [float(n) for n in activated.args[1:]] == numbers[: len(activated.args) - 1]
        if not same or given.meta["val"].dtype not in LOOPED:  # others round the bounds
            return None
    if not output.meta["val"].is_contiguous():
        return None
    return output, numbers[0], numbers[1] if len(numbers) > 1 else None


def _original(node: Any) -> Any:
    """What this is a view or a copy of, in the same order."""
    while str(node.target) in SAME:
        node = node.args[0]
    return node


def _list(numbers: Any) -> list[int]:
    return [*numbers]


def _pair(numbers: Any) -> list[int]:
    return [*numbers] * 2 if len(numbers) == 1 else [*numbers]
