"""Parts of a convolution's backward by other kernels than the joint op's: see `rules/convolution.py` and
`rules/layouts.py` for why.

Each returns what `aten.convolution_backward` returns, with None for what it does not make, so that either can stand in for it.

A kernel for parameters' gradients gives each of its threads a share of the samples, and adds up what they find. One thread after another finds the same, and
what a kernel copies into a layout of its own is then there for one share at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lowtide.kernels.loops import team

__all__ = [
    "gradients_and_made_parts",
    "input_gradient",
    "output_padding",
    "parameter_gradients",
    "parameter_gradients_by_made_parts",
    "parameter_gradients_by_parts",
    "parameter_gradients_by_shares",
]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def input_gradient(
    gradient: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    missing: Sequence[int],
    groups: int,
    transposed: bool = False,
) -> Gradients:
    """The transposed convolution of the output's gradient; `missing` as `output_padding` gives it. Of a `transposed` one the plain
    convolution, of which nothing is missing."""
    made = torch.ops.aten.convolution.default(
        gradient, weight, None, stride, padding, dilation, not transposed, missing, groups
    )
    return made, None, None


def output_padding(
    given: Sequence[int],
    made: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """Rows of the input that the convolution's last window did not reach, per dimension."""
    reached = [
        (m - 1) * s - 2 * p + d * (k - 1) + 1
        for m, k, s, p, d in zip(made, kernel, stride, padding, dilation, strict=True)
    ]
    return [g - r for g, r in zip(given, reached, strict=True)]


def parameter_gradients(
    gradient: Tensor, given: Tensor, weight: Tensor, *rest: object
) -> Gradients:
    """From operands in any layout; the weight's gradient is laid out like the weight."""
    _, by_weight, by_bias = torch.ops.aten.convolution_backward.default(
        gradient, given, weight, *rest
    )
    if by_weight is not None and by_weight.stride() != weight.stride():
        by_weight = torch.empty_like(weight).copy_(by_weight)
    return None, by_weight, by_bias


def parameter_gradients_by_shares(
    gradient: Tensor,
    given: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *rest: Any,
    wanted: Sequence[bool],
    shares: int,
) -> Gradients:
    """A share of the samples after another, on one thread."""

    def of(share: int) -> Gradients:
        found = torch.ops.aten.convolution_backward.default(
            gradient.chunk(shares)[share], given.chunk(shares)[share], weight, bias_sizes, *rest, wanted,
        )  # fmt: skip
        return (None, *found[1:])

    return _added(of, shares)


def _added(of: Callable[[int], Gradients], shares: int) -> Gradients:
    """What the shares find, in the order of threads."""
    found = _in_turn(of, shares)
    total = next(found)
    for share in found:
        for sum_, more in zip(total, share, strict=True):
            if sum_ is not None and more is not None:
                sum_.add_(more)
    return total


def _in_turn(of: Callable[[int], Any], shares: int) -> Iterator[Any]:
    """One share after another; several of them on one thread each."""
    threads = team() if shares > 1 else None
    for share in range(shares):
        with threads.alone() if threads else nullcontext():
            found = of(share)
        yield found


def parameter_gradients_by_parts(
    gradients: Tensor,
    given: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *rest: object,
    wanted: Sequence[bool],
    shares: int = 1,
) -> Gradients:
    """From both operands in parts of their channels (`kernels/layout.py`)."""

    def part(index: int, share: int) -> Tensor:
        return given[index].chunk(shares)[share]

    return _by_pairs(gradients, len(given), part, weight, rest, wanted, shares)


def parameter_gradients_by_made_parts(
    gradients: Tensor,
    count: int,
    source: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    *rest: object,
    wanted: Sequence[bool],
    convolved: Sequence[Any],
    then: Sequence[tuple[Callable[..., Tensor], Sequence[Any]]],
    blocked: bool,
    shares: int = 1,
) -> Gradients:
    """The same where the input is what these filters and then these activations make of a source: `count` parts, each made when it is
    wanted. `blocked`: in oneDNN's own layout, which its kernels need not copy then."""
    make = _made_parts(count, source, filters, bias, convolved, then, blocked, shares)
    return _by_pairs(gradients, count, make, weight, rest, wanted, shares)


def gradients_and_made_parts(
    gradients: Tensor,
    count: int,
    source: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    *rest: Any,
    shares: int = 1,
    **options: Any,
) -> tuple[Tensor, ...]:
    """The same, and the whole input, for comparison."""
    operands = (count, source, filters, bias)
    found = parameter_gradients_by_made_parts(gradients, *operands, *rest, shares=shares, **options)
    make = _made_parts(*operands, options["convolved"], options["then"], options["blocked"], shares)

    def inside(share: int) -> Tensor:
        parts = (make(index, share) for index in range(count))
        return torch.cat([part.to_dense() if part.is_mkldnn else part for part in parts], 1)

    return (*(tensor for tensor in found if tensor is not None), torch.cat([*_in_turn(inside, shares)]))  # fmt: skip


def _made_parts(
    count: int,
    source: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    convolved: Sequence[Any],
    then: Sequence[tuple[Callable[..., Tensor], Sequence[Any]]],
    blocked: bool,
    shares: int = 1,
) -> Callable[[int, int], Tensor]:
    def make(index: int, share: int) -> Tensor:
        some = None if bias is None else bias.chunk(count)[index]
        given = source.chunk(shares)[share]
        given = given.to_mkldnn() if blocked else given
        made = torch.ops.aten.convolution.default(
            given, filters.chunk(count)[index], some, *convolved
        )
        for call, more in then:
            made = call(made, *more)
        return made

    return make


def _by_pairs(
    gradients: Tensor,
    count: int,
    given: Callable[[int, int], Tensor],
    weight: Tensor,
    rest: Sequence[object],
    wanted: Sequence[bool],
    shares: int,
) -> Gradients:
    """Of the weight's gradient a block from each pair of parts."""
    rows, columns = gradients.shape[2], weight.shape[1] // count

    def of(share: int) -> Gradients:
        by_weight = torch.empty_like(weight)
        by_bias = []
        for column in range(count):
            part = given(column, share)
            for row, gradient in enumerate(gradients):
                block = by_weight[row * rows :][:rows, column * columns :][:, :columns]
                mask = [False, True, wanted[2] and column == 0]
                sizes = [rows] if mask[2] else None
                _, made, bias = torch.ops.aten.convolution_backward.default(
                    gradient.chunk(shares)[share], part, block, sizes, *rest, mask
                )
                block.copy_(made)
                by_bias += [bias] if mask[2] else []
            del part  # before the next one is made
        return None, by_weight if wanted[1] else None, torch.cat(by_bias) if by_bias else None

    return _added(of, shares)
