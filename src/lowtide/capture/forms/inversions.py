"""What an op read from what it made: leaky ReLU's and batch norm's inputs, and batch norm's gradients without its input."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Added, Form
from lowtide.ir.graph import Op
from lowtide.kernels.inversion import (
    gradients_from_output,
    gradients_from_output_by_channels,
    input_from_output,
    lost,
)
from lowtide.rules.inverted import INVERTED, SPARED, room

__all__ = ["inverted", "loses_too_much"]

_LEAKY = torch.ops.aten.leaky_relu.default
_LEAST_SLOPE = 1e-6
"""Below, an output may be too small for its type to hold."""


def inverted(captured: Captured, op: Op, plain: Form) -> Form | None:
    if op.target == SPARED:
        return _spared(plain.args, captured.tensors[op.inputs[-1]])
    kept = op.inputs[-1]
    if kept in captured.tensors:
        return _undone(captured.tensors[kept])
    norm = captured.nodes[kept.rpartition(".")[0]]
    weight, bias, eps = norm.args[1], norm.args[2], norm.args[7]
    output, mean, rstd = (captured.tensors[n] for n in captured.graph.op[norm.name].outputs[:3])
    spare = _spared(norm.args, rstd)
    if spare is None or not _alike(norm.args[0], output):
        return None
    read = (output, weight, bias, mean, rstd, Added(kept, spare), eps)
    if op.target == INVERTED:
        return Form(input_from_output, read, {})
    gradient, mask = plain.args[0], plain.args[-1]
    if not op.name.endswith(".channels"):
        return Form(gradients_from_output, (gradient, *read, mask), {})
    plainly = mask[0] and all(n.meta["val"].is_contiguous() for n in (gradient, output))
    return Form(gradients_from_output_by_channels, (gradient, *read, mask), {}) if plainly else None


def loses_too_much(captured: Captured, op: Op) -> bool:
    """Does a batch norm, as its weights are now, lose more of its input than a plan has room for? Asked of the op that puts it by, without
    which there is nothing that reads the output."""
    if op.rule != "inverted" or op.target != SPARED:
        return False
    given, weight, bias = captured.nodes[op.of].args[:3]
    now = [None if n is None else captured.given.get(n.name) for n in (weight, bias)]
    with _disable_current_modes(), torch.no_grad():  # a graph is being captured
        those = lost(*now)
        return those is not None and int(those.sum()) > room(tuple(given.meta["val"].shape))


def _undone(output: fx.Node) -> Form | None:
    slope = float(output.args[1]) if len(output.args) > 1 else 0.01
    if slope < _LEAST_SLOPE or not _alike(output.args[0], output):
        return None
    return Form(_LEAKY, (output, 1 / slope), {})


def _spared(norm: tuple[fx.Node, ...], rstd: fx.Node) -> Form | None:
    given, weight, bias, *_, eps = norm
    if not all(type(n) is int for n in given.meta["val"].shape):
        return None
    return Form(torch.ops.lowtide.spared.default, (given, weight, bias, rstd, eps), {})


def _alike(given: fx.Node, made: fx.Node) -> bool:
    one, other = given.meta["val"], made.meta["val"]
    return one.dtype == other.dtype and one.stride() == other.stride()
