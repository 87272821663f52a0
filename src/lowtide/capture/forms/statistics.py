"""A batch norm's statistics by themselves, and what is made of its output from its input, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.forms.base import Form
from lowtide.ir.graph import Op
from lowtide.kernels.batch_norm import LOOPED, activated, as_captured, counted
from lowtide.kernels.loops import COMPILED
from lowtide.kernels.statistics import normalised
from lowtide.rules.statistics import NORMALISED, STATISTICS

__all__ = ["from_statistics", "pass_by_pass"]


def from_statistics(captured: Captured, op: Op, plain: Form) -> Form | None:
    if op.target == NORMALISED:
        read = _read(captured, op)
        return Form(activated, (*read[:-1], *_bounds(read[-1])), {}) if read else None
    x, weight, bias, *running = plain.args[:5]
    if op.target == STATISTICS:
        training, momentum, eps = plain.args[5:8]
        counts = training and _looped(x, *running) and x.meta["val"].dtype is torch.float32
        return Form(counted, (x, *running, momentum, eps), {}) if counts else None
    mean, rstd = (captured.tensors.get(name) for name in op.inputs[-2:])
    if mean is None or rstd is None:
        return None
    return Form(normalised, (x, weight, bias, mean, rstd), {})


def pass_by_pass(captured: Captured, op: Op) -> Form | None:
    """What `activated` does, as it was captured."""
    read = _read(captured, op)
    return Form(as_captured, read, {}) if read else None


def _read(captured: Captured, op: Op) -> tuple[Any, ...] | None:
    """The operands of `activated`, and the activations with their numbers."""
    last, norm = captured.nodes[op.of], captured.nodes[op.name.rpartition(".of_")[2]]
    output, mean, rstd = (captured.tensors[n] for n in captured.graph.op[norm.name].outputs[:3])
    calls: tuple[tuple[Any, tuple[Any, ...]], ...] = ()
    plus = None
    if last.target is not torch.ops.aten.add.Tensor and last.args[0] is not output:
        calls, last = ((last.target, tuple(last.args[1:])),), last.args[0]
    if last.target is torch.ops.aten.add.Tensor:
        if last.kwargs or len(last.args) != 2 or last.args[0] is last.args[1]:
            return None
        plus = next(a for a in last.args if a is not output)
    elif not calls:
        calls = ((last.target, tuple(last.args[1:])),)
    x, weight, bias = norm.args[:3]
    tensors = [x, mean, rstd, *(n for n in (weight, bias, plus) if n is not None)]
    return (x, weight, bias, mean, rstd, plus, calls) if _looped(*tensors) else None


def _bounds(calls: tuple[tuple[Any, tuple[Any, ...]], ...]) -> tuple[float | None, float | None]:
    if not calls:
        return None, None
    ((call, numbers),) = calls
    if call is torch.ops.aten.relu.default:
        return 0.0, None
    low, high = (*numbers, *(-1.0, 1.0)[len(numbers) :])
    return float(low), float(high)


def _looped(*nodes: fx.Node) -> bool:
    """All on a CPU, without gaps, of known sizes and one type that the loops are for."""
    if not COMPILED or not all(isinstance(n, fx.Node) for n in nodes):
        return False
    tensors = [n.meta["val"] for n in nodes]
    alike = len({t.dtype for t in tensors}) == 1 and tensors[0].dtype in LOOPED
    dense = all(type(n) is int and n for t in tensors for n in t.shape) and all(t.is_contiguous() for t in tensors)  # fmt: skip
    return alike and dense and tensors[0].dim() > 1 and all(t.device.type == "cpu" for t in tensors)
