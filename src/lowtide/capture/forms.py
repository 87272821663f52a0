"""With which call does an op run? The captured call itself, or the form of it that a rule proposed.

A rule names an op's inputs and outputs and nothing else; what to call for it, in terms of the captured call, is said here, once,
for whoever prices it and whoever runs it. A form that this very call does not have (a transposed convolution's, one with
symbolic sizes) is None: then the op is not offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.slicing import sliced
from lowtide.errors import GraphError
from lowtide.ir.graph import Graph, Op
from lowtide.kernels import masks
from lowtide.kernels.convolution import input_gradient, output_padding, parameter_gradients
from lowtide.kernels.layout import channels_first_over, channels_last_over
from lowtide.kernels.loops import COMPILED
from lowtide.kernels.pooling import gradient_without_input
from lowtide.kernels.products import product_over_rows
from lowtide.kernels.statistics import normalised

_ops = torch.ops.lowtide

__all__ = ["Added", "Form", "compared", "form_of", "without_formless", "written_over"]


class Form(NamedTuple):
    target: Callable[..., Any]
    args: tuple[Any, ...]
    """With nodes of the captured joint graph, and `Added` for values that rules added."""
    kwargs: dict[str, Any]

    def arguments(
        self, node: Callable[[fx.Node], Any], added: Callable[[Added], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """With what these say in the places of nodes and added values."""
        args = tuple(added(a) if isinstance(a, Added) else fx.map_arg(a, node) for a in self.args)
        return args, fx.map_arg(self.kwargs, node)

    def call(self, node: Callable[[fx.Node], Any]) -> Any:
        """Run it on what stands for each node; added values are made on the way."""
        args, kwargs = self.arguments(node, lambda added: added.form.call(node))
        return self.target(*args, **kwargs)


@dataclass(frozen=True)
class Added:
    """In a form's arguments: a value that a rule added, and the call that makes it from captured tensors."""

    name: str
    form: Form


def without_formless(captured: Captured, graph: Graph) -> Graph:
    """The graph without the proposals for calls that have no such form, and no leave to write over what lies otherwise."""
    gone = {o.name for o in graph.ops if o.rule and form_of(captured, o) is None}
    left = graph.without(gone) if gone else graph
    return left.with_ops(_writable(captured, o) if o.over else o for o in left.ops)


def _writable(captured: Captured, op: Op) -> Op:
    if op.target in ("lowtide.copy", "lowtide.copy_back"):
        original = captured.tensors[op.over[0] if op.target == "lowtide.copy" else op.outputs[0]]
        return op if original.meta["val"].is_contiguous() else replace(op, over=())
    made = captured.tensors[op.outputs[0]].meta["val"]
    given = {name: captured.tensors[name].meta["val"] for name in op.over}
    same = [
        name
        for name, tensor in given.items()
        if tensor.stride() == made.stride() and tensor.dtype == made.dtype and _dense(made)
    ]
    return replace(op, over=tuple(same))


def written_over(form: Form, node: fx.Node | None) -> Form:
    """The same call with its result in the place of one of its tensors; none where that is a value which a rule added."""
    if form.target in _OVER:
        return Form(_OVER[form.target], form.args, form.kwargs)
    if form.target is torch.ops.aten.clone.default:
        there = form.kwargs["memory_format"] is torch.channels_last
        return Form(channels_last_over if there else channels_first_over, form.args, {})
    if not isinstance(form.target, torch._ops.OpOverload):
        return Form(form.target, form.args, {**form.kwargs, "over": node})
    packet = form.target.overloadpacket
    name = "grad_input" if "grad_input" in packet.overloads() else "out"
    return Form(getattr(packet, name), form.args, {**form.kwargs, name: node})


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
    if op.target == "lowtide.copy_back":
        original = captured.tensors[op.outputs[0]]
        copy = Added(op.inputs[0], _clone(original, torch.channels_last))
        plainly = original.meta["val"].is_contiguous()
        return _clone(copy, torch.contiguous_format) if plainly else None
    gradient, given, weight, *rest = plain.args
    copies = {node.name: _copy(op, node) for node in (gradient, given)}
    if any(copy is None for copy in copies.values()):
        return None
    if op.target == "lowtide.copy":
        added = copies[op.inputs[0]]
        return added and added.form
    mask = _mask(captured, op, plain)
    return Form(parameter_gradients, (*copies.values(), weight, *rest[:-1], mask), {})


def _copy(op: Op, node: fx.Node) -> Added | None:
    """As `rules/convolution.py` names it; None where the tensor has no such layout, or lies in it already."""
    tensor = node.meta["val"]
    if tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    return Added(f"{op.of}.{node.name}.{op.rule}", _clone(node, torch.channels_last))


def _clone(original: fx.Node | Added, layout: torch.memory_format) -> Form:
    return Form(torch.ops.aten.clone.default, (original,), {"memory_format": layout})


def _one_bit(captured: Captured, op: Op, plain: Form) -> Form | None:
    """A gradient from bits; both tensors must lie in memory in one order."""
    name = op.name.rpartition(".")[0]
    backward = captured.nodes[name]
    gradient, decides, *numbers = backward.args
    if op.target == "lowtide.pack":
        decides = captured.tensors[op.inputs[0]]
    given, made = decides.meta["val"], gradient.meta["val"]
    if given.stride() != made.stride() or not _dense(given):
        return None
    match str(backward.target):
        case "aten.threshold_backward.default":
            bits = Form(_ops.pack_above.default, (decides, float(numbers[0])), {})
            rest: tuple[float, ...] | None = None
        case "aten.hardtanh_backward.default":
            bits = Form(_ops.pack_inside.default, (decides, *map(float, numbers)), {})
            rest = None
        case "aten.leaky_relu_backward.default":
            bits = Form(_ops.pack_above.default, (decides, 0.0), {})
            rest = (1.0, float(numbers[0]))
        case _:
            bits = Form(_ops.pack_true.default, (decides,), {})
            rest = (float(numbers[0]), 0.0)
    if op.target == "lowtide.pack":
        return bits
    read = (gradient, Added(f"{name}.bits", bits))
    return (
        Form(_ops.masked.default, read, {})
        if rest is None
        else Form(_ops.scaled.default, (*read, *rest), {})
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Every element at a place of its own, and none between them; sizes known."""
    if not all(type(n) is int for n in (*tensor.shape, *tensor.stride())):
        return False
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True


def _from_output(captured: Captured, op: Op, plain: Form) -> Form | None:
    gradient, _, *numbers = plain.args
    output = captured.tensors[op.inputs[1]]
    same = [float(n) for n in output.args[1:]] == [
        float(n) for n in numbers[: len(output.args) - 1]
    ]
    upward = "leaky" not in str(plain.target) or (len(output.args) > 1 and output.args[1] >= 0)
    return Form(plain.target, (gradient, output, *numbers), {}) if same and upward else None


def _statistics(captured: Captured, op: Op, plain: Form) -> Form | None:
    x, weight, bias = plain.args[:3]
    mean, rstd = (captured.tensors.get(name) for name in op.inputs[-2:])
    if mean is None or rstd is None:
        return None
    return Form(normalised, (x, weight, bias, mean, rstd), {})


def _pool(captured: Captured, op: Op, plain: Form) -> Form | None:
    name = op.name.rpartition(".")[0]
    gradient, given, kernel, stride, padding, dilation, ceil, indices = captured.nodes[name].args
    sizes = list(given.meta["val"].shape)
    plain_layout = all(n.meta["val"].is_contiguous() for n in (gradient, given, indices))
    whole = all(type(n) is int for n in sizes)
    if not plain_layout or not whole:
        return None
    if op.name.endswith(".without_input"):
        geometry = (kernel, stride, padding, dilation, ceil)
        return Form(gradient_without_input, (gradient, indices, sizes, *geometry), {})
    kernel, stride, padding, dilation = (_pair(n) for n in (kernel, stride or kernel, padding, dilation))  # fmt: skip
    tensor = given.meta["val"]
    small = kernel[0] * kernel[1] <= 16 and dilation == [1, 1] and kernel[1] <= sizes[-1]
    if not small or not COMPILED or tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):  # fmt: skip
        return None
    packed = Form(_ops.pack_indices.default, (indices, sizes[-1], kernel, stride, padding), {})
    if op.target == "lowtide.pack":
        return packed
    read = (gradient, Added(f"{name}.packed", packed))
    return Form(_ops.pool_gradient.default, (*read, sizes, kernel, stride, padding), {})


def _slices(captured: Captured, op: Op, plain: Form, *, bare: bool = False) -> Form | None:
    last = None
    if plain.target is torch.ops.aten.convolution_backward.default:
        last = _transposed(captured, op, plain)
        if last is None:
            return None
    count = int(op.target.rpartition(".")[2])
    call = sliced(captured, op, count, last, bare=bare)
    return call and Form(*call)


def _summed(captured: Captured, op: Op, plain: Form) -> Form | None:
    if plain.target is torch.ops.aten.convolution_backward.default:
        mask = _mask(captured, op, plain)
        last = Form(parameter_gradients, (*plain.args[:-1], mask), {})
    else:
        turned, other = plain.args
        last = Form(product_over_rows, (turned.args[0], other), {})
    call = sliced(captured, op, int(op.target.rpartition(".")[2]), last, summed=True)
    return call and Form(*call)


def compared(captured: Captured, op: Op) -> tuple[Form | None, Form | None, list[int | None]]:
    """A captured call, a rule's op that is to give the same bits, and the elements to compare; none for all. Of regions all that is
    inside is compared, too: a bit that differs there may not show in the end for one batch, and show for another."""
    plain = form_of(captured, captured.graph.op[op.of])
    wanted = [captured.elements.get(name) for name in op.outputs]
    single = captured.nodes[op.of].target is torch.ops.aten.convolution_backward.default
    if op.rule != "slices" or single or plain is None:
        return plain, form_of(captured, op), wanted
    whole, cut = sliced(captured, op, 1, bare=True), _slices(captured, op, plain, bare=True)
    if whole is None or cut is None:
        return None, None, []
    return Form(*whole), cut, []


def _pair(numbers: Any) -> list[int]:
    return [*numbers] * 2 if len(numbers) == 1 else [*numbers]


_FORMS: dict[str, Callable[[Captured, Op, Form], Form | None]] = {
    "split": _masked,
    "transposed": _transposed,
    "channels_last": _channels_last,
    "mask": _one_bit,
    "from_output": _from_output,
    "statistics": _statistics,
    "pool": _pool,
    "slices": _slices,
    "summed": _summed,
}
_OVER: dict[Any, Callable[..., Any]] = {
    _ops.masked.default: masks.masked_over,
    _ops.scaled.default: masks.scaled_over,
}
"""Ops of ours that write over their gradient."""
