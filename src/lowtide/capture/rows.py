"""Which tensors of a call go along with its outputs row by row?

A row is an index of the first axis: a sample, a token, or a head of a sample. Where a part of an op's rows can be made from the same part
of some inputs' rows and the whole of the others, a chain of such ops can be run a part at a time, and what is between them never
exists whole. Sizes may differ along the chain (4 sequences of 16 tokens are 64 rows of a matrix): what is the same is the share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

__all__ = ["row_inputs", "share_arguments"]

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_FIRST = frozenset({
    aten.mm.default, aten.convolution.default, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default,
    aten._adaptive_avg_pool2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec,
    aten.clone.default, aten._to_copy.default, aten.alias.default, aten.detach.default,
})  # fmt: skip
"""Of their first argument's rows."""
_ALL = frozenset({
    aten.bmm.default, aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d_backward.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
})  # fmt: skip
"""Of all their tensors' rows."""


def row_inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The inputs that are read by rows; none where rows depend on each other, or sizes are not known."""
    outputs = [t for t in _flat(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    known = all(_known(t) for t in (*outputs, *(n.meta.get("val") for n in node.all_input_nodes)))
    if not outputs or not known or any(t.dim() == 0 or t.shape[0] < 2 for t in outputs):
        return ()
    found = dict.fromkeys(_found(node, outputs[0]))
    if node.target in _RESHAPES:
        fine = all(_dim(n) > 0 and _tensor(n).shape[0] > 1 for n in found)
    else:
        rows = {t.shape[0] for t in outputs}
        fine = all(_dim(n) > 0 and rows == {_tensor(n).shape[0]} for n in found)
    return tuple(found) if fine else ()


def share_arguments(node: fx.Node, count: int, new: Callable[[fx.Node], Any]) -> tuple[Any, Any]:
    """The call's arguments for one of `count` equal shares of its rows."""
    args = list(node.args)
    if node.target in (*_RESHAPES, aten.expand.default):
        first, *rest = _tensor(node).shape
        args[1] = [first // count, *rest]
    return fx.map_arg(tuple(args), new), fx.map_arg(dict(node.kwargs), new)


def _found(node: fx.Node, made: torch.Tensor) -> Iterable[fx.Node]:
    target, tensors = node.target, node.all_input_nodes
    if target in _FIRST:
        return tensors[:1]
    if target in _ALL:  # an attention mask may have fewer axes: then it has no rows
        return tensors if len({_dim(n) for n in tensors}) == 1 else ()
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        return [
            n for n in tensors if _dim(n) == made.dim() and _tensor(n).shape[0] == made.shape[0]
        ]
    special = _SPECIAL.get(target)
    return special(node) if special else ()


def _reshaped(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def _expanded(node: fx.Node) -> Iterable[fx.Node]:
    source = node.all_input_nodes[0]
    same = _dim(source) == _dim(node) and _tensor(source).shape[0] == _tensor(node).shape[0]
    return (source,) if same else ()


def _permuted(node: fx.Node) -> Iterable[fx.Node]:
    first = node.args[1][0] % _dim(node)  # type: ignore[index, operator]
    return node.all_input_nodes if first == 0 else ()


def _along(*places: int) -> Callable[[fx.Node], Iterable[fx.Node]]:
    """All tensors, if none of the axes in these arguments is the first."""

    def found(node: fx.Node) -> Iterable[fx.Node]:
        ranked = node if node.target is aten.unsqueeze.default else node.all_input_nodes[0]
        given = [node.args[i] if len(node.args) > i else 0 for i in places]
        axes = [axis for one in given for axis in _flat(one)]
        fine = axes and all(isinstance(a, int) and a % max(_dim(ranked), 1) != 0 for a in axes)
        return node.all_input_nodes if fine else ()

    return found


def _addmm(node: fx.Node) -> Iterable[fx.Node]:
    bias, left = node.args[:2]
    return (left,) if isinstance(bias, fx.Node) and _dim(bias) == 1 else ()  # type: ignore[return-value]


def _layer_norm(node: fx.Node) -> Iterable[fx.Node]:
    given = node.all_input_nodes[0]
    return (given,) if len(node.args[1]) < _dim(given) else ()  # type: ignore[arg-type]


def _embedding(node: fx.Node) -> Iterable[fx.Node]:
    return (node.args[1],)  # type: ignore[return-value]


def _nll_backward(node: fx.Node) -> Iterable[fx.Node]:
    """Of a mean or a sum: each row from the one number that came back."""
    gradient, given, target = node.args[:3]
    fine = _dim(gradient) == 0 and _dim(given) > 1  # type: ignore[arg-type]
    return (given, target) if fine else ()  # type: ignore[return-value]


def _cat(node: fx.Node) -> Iterable[fx.Node]:
    axis = node.args[1] if len(node.args) > 1 else 0
    return node.all_input_nodes if axis % _dim(node) else ()  # type: ignore[operator]


_SPECIAL: dict[Any, Callable[[fx.Node], Iterable[fx.Node]]] = {
    **dict.fromkeys(_RESHAPES, _reshaped),
    aten.expand.default: _expanded,
    aten.permute.default: _permuted,
    aten.transpose.int: _along(1, 2),
    aten.unsqueeze.default: _along(1),
    aten.squeeze.dim: _along(1),
    aten.slice.Tensor: _along(1),
    aten.select.int: _along(1),
    aten.cat.default: _cat,
    aten.sum.dim_IntList: _along(1),
    aten.mean.dim: _along(1),
    aten.amax.default: _along(1),
    aten._softmax.default: _along(1),
    aten._log_softmax.default: _along(1),
    aten._softmax_backward_data.default: _along(2),
    aten._log_softmax_backward_data.default: _along(2),
    aten.gather.default: _along(1),
    aten.addmm.default: _addmm,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding.default: _embedding,
    aten.nll_loss_backward.default: _nll_backward,
    aten.nll_loss2d_backward.default: _nll_backward,
}


def _flat(made: Any) -> list[Any]:
    return [*made] if isinstance(made, (tuple, list)) else [made]


def _tensor(node: fx.Node) -> torch.Tensor:
    tensor: torch.Tensor = node.meta["val"]
    return tensor


def _dim(node: fx.Node) -> int:
    return _tensor(node).dim()


def _known(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and all(type(n) is int for n in tensor.shape)
