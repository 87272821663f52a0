"""Without their zeros (`allow=("sparse",)`): what a ReLU or a dropout made waits for backward as the numbers that are not zero, and a bit for
each element that says where they were.

A bitmap and not CSR: its bits cost the same wherever the zeros are, one per element. CSR has a column's number for each number that is kept, 32 bits
at most widths; that is less only where fewer than one element in 32 is not zero, and after a ReLU it is about every second. A bitmap
is also packed and unpacked sixteen numbers at once.

How many zeros there are depends on the data, which rules do not know. So several sizes are proposed of each tensor, with room for one to twelve
sixteenths of its elements; when the ops are priced, the elements are counted in a real forward (`measure/density.py`), and only the smallest
size stays that has room for that many and an eighth more. The eighth is for other batches and for weights as they will be: in two small
convolutional networks trained for 120 steps, no ReLU let through 5% more than at first, nor of any batch 8% more than on average. Where a batch has still more,
it is packed all the same: memory is taken that was not planned, and a warning says so. The bits are the same in any case.

Zero is +0.0. A dropout multiplies what it drops by zero, which makes -0.0 of a negative number, and that is kept. So dropout pays behind a ReLU, and little elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Kind, Value
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.encoded import encoded, kept_for_later

__all__ = ["PARTS", "Sparse", "packed_bytes", "parts_needed", "parts_of"]

PARTS = 16
"""Into which the elements of a tensor are divided; room is planned for a whole number of them."""
_MARGIN = 1 / 8
_SMALLER = 0.8
"""Of a tensor's bytes: what takes more is not worth it."""
_WORD = 64
"""Elements whose bits are padded to whole words."""
_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8}
_ZEROES = frozenset((
    "aten.relu.default", "aten.threshold.default", "aten.hardtanh.default", "aten.clamp_min.default",
    "aten.native_dropout.default", "lowtide.dropout.default", "aten.bernoulli.p",
))  # fmt: skip
"""What makes zeros of other numbers."""
_THROUGH = frozenset((
    "aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", "aten.cat.default",
    "aten.mul.Tensor", "aten.div.Tensor", "aten.clone.default", "aten._to_copy.default", "aten.constant_pad_nd.default",
))  # fmt: skip
"""What leaves zeros where there were some. How many are left is counted."""


@dataclass(frozen=True)
class Sparse:
    name: str = "sparse"
    reason: str = "keeps only the numbers that are not zero, and a bit per element"
    exactness: Exactness = Exactness.SPARSE
    probed: bool = True
    """How many zeros there are is seen when the ops are priced."""
    least: int = 2**16
    """Bytes of a tensor that is worth it."""

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        zeroed = _with_zeros(graph)
        for value, maker, segment in kept_for_later(graph, self.least):
            each = _BYTES.get(value.spec.partition("[")[0], 0)
            if value.name not in zeroed or value.bytes != each * value.elements:
                continue
            for parts in range(1, PARTS):
                size = packed_bytes(value.elements, each, parts)
                if size > _SMALLER * value.bytes:
                    break
                name = f"{value.name}.{self.name}{parts}"
                small = Value(name, size, name, Kind.ACTIVATION, value.layer, f"u8[{size}]")
                yield encoded(self.name, value, maker, segment, small)


def packed_bytes(elements: int, each: int, parts: int) -> int:
    """Of a tensor with room for so many sixteenths of its elements: the bits, then the numbers, `each` so many bytes."""
    return -(-elements // _WORD) * _WORD // 8 + each * -(-elements * parts // PARTS)


def parts_needed(count: int, elements: int) -> int:
    """Sixteenths of the elements to plan for, where so many were not zero."""
    return max(1, math.ceil(count * (1 + _MARGIN) * PARTS / max(elements, 1)))


def parts_of(name: str) -> int:
    """Sixteenths for which a packed value has room, by its name."""
    return int(name.rpartition(".sparse")[2])


def _with_zeros(graph: Graph) -> frozenset[str]:
    """Storages in which there may be many zeros."""
    found: set[str] = set()
    for op in graph.captured:
        inherits = op.target in _THROUGH and any(graph.storage(n) in found for n in op.inputs)
        if op.target in _ZEROES or inherits:
            found.update(map(graph.storage, op.outputs))
    return frozenset(found)
