"""What would this op read in a real step? Real tensors in the place of a captured call's fake ones.

Goes in: arguments whose tensors are usually fake. Comes out: the same arguments with fresh real tensors of the same sizes,
strides, dtypes and devices, symbolic numbers at their hints, and everything else untouched. Always fresh, also for real
tensors, whose values are copied: the op that is measured may write into them.

The values are chosen so that an op takes the time it takes in training and does not fail:
- floats are normally distributed around zero, away from denormals (which are many times slower) and from NaN. They are copied
  from one block of random numbers again and again, which is as fast as memory; drawing them took longer than most ops.
- integers and bools are zero: an index that is valid whatever it indexes.
- what packs a tensor without its zeros reads one with as many as were counted, and what unpacks it what the first made.
Tensors that overlap themselves (expanded) are cut from a storage of their true size, so they stay as small as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree

from lowtide.kernels.sparse import without_zeros
from lowtide.measure.signature import concrete
from lowtide.rules.sparse import PARTS, packed_bytes

__all__ = [
    "Fill",
    "empty",
    "normal",
    "probabilities",
    "real_inputs",
    "real_tensor",
    "tensors_in",
    "with_zeros_as_planned",
]

Fill = Callable[[torch.Tensor, torch.Tensor], None]
"""Puts values into a new flat tensor, given the tensor it stands for."""

_ops = torch.ops.lowtide
_SURELY = 0.95
_BLOCK = 1_000_003  # prime, so that rows of a matrix do not repeat


def real_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], fill: Fill
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made: dict[int, torch.Tensor] = {}

    def build(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return concrete(leaf)
        if id(leaf) not in made:  # mul(x, x) reads one tensor
            made[id(leaf)] = real_tensor(leaf, fill)
        return made[id(leaf)]

    return pytree.tree_map(build, tuple(args)), pytree.tree_map(build, dict(kwargs))


def tensors_in(*things: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(things) if isinstance(leaf, torch.Tensor)]


def real_tensor(like: torch.Tensor, fill: Fill) -> torch.Tensor:
    if like.layout is torch._mkldnn:
        dense = torch.empty([concrete(s) for s in like.shape], dtype=like.dtype)
        fill(dense.view(-1), dense)
        return dense.to_mkldnn()
    if like.layout is not torch.strided:
        raise ValueError(f"cannot make a {like.layout} tensor to measure with")
    size, stride = [concrete(s) for s in like.shape], [concrete(s) for s in like.stride()]
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    flat = torch.empty(last + 1 if 0 not in size else 0, dtype=like.dtype, device=like.device)
    fill(flat, like)
    return flat.as_strided(size, stride)


def empty(flat: torch.Tensor, like: torch.Tensor) -> None:
    """No values: only sizes are asked for."""


def normal(flat: torch.Tensor, like: torch.Tensor) -> None:
    if _is_real(like):
        flat.copy_(like.detach().as_strided(flat.shape, (1,)))
    else:
        _repeat(flat, _normal_block)


def probabilities(flat: torch.Tensor, like: torch.Tensor) -> None:
    """Between 0 and 1, for ops that refuse anything else."""
    _repeat(flat, _uniform_block)


def with_zeros_as_planned(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments; those of the two ops that know zeros with about as many as there is room for in the plan."""
    if function is _ops.without_zeros.default:
        _thin(args[0], args[1] / PARTS)
    elif function is _ops.with_zeros.default:
        small, shape, strides, dtype = args
        whole = torch.empty_strided(shape, strides, dtype=dtype, device=small.device)
        _repeat(_in_order(whole), _normal_block)
        room = len(small) - packed_bytes(whole.numel(), 0, 0)
        _thin(whole, room / max(whole.nbytes, 1))
        return without_zeros(whole, PARTS), *args[1:]
    return args


def _thin(tensor: torch.Tensor, share: float) -> None:
    """Leaves less than this share of the numbers."""
    for piece in _in_order(tensor).split(_BLOCK):
        piece.masked_fill_(_uniform_block()[: len(piece)].to(piece.device) >= share * _SURELY, 0)


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


def _is_real(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"


def _repeat(flat: torch.Tensor, block: Callable[[], torch.Tensor]) -> None:
    if not (flat.is_floating_point() or flat.is_complex()):
        flat.zero_()
        return
    for piece in flat.split(_BLOCK):
        piece.copy_(block()[: len(piece)])


@cache
def _normal_block() -> torch.Tensor:
    values = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(0))
    return torch.where(values.abs() < 1e-3, 1e-3, values)


@cache
def _uniform_block() -> torch.Tensor:
    return torch.rand(_BLOCK, generator=torch.Generator().manual_seed(0)).clamp_(0.01, 0.99)
