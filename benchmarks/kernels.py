"""Do the kernels run at the speed of memory? Each against `torch.clone` of the tensor it reads, run in turn.

    python benchmarks/kernels.py [--elements 16777216] [--rounds 15]

Prints the bytes that each reads and writes per second as a share of what clone reads and writes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from lowtide.kernels import bytes as small
from lowtide.kernels import files, masks, max_pool, pooling, sparse
from lowtide.kernels import statistics as norms

Work = tuple[Callable[[], object], int]
"""A kernel on its operands, and the bytes that it reads and writes."""


def works(elements: int, side: int = 64) -> dict[str, Work]:
    """Of tensors of about so many elements, in planes of `side` by `side`."""
    x = torch.randn(elements // (side * side) // 16, 16, side, side)
    kept, bits = x > 0, masks.pack_above(x, 0.0)
    channel = torch.rand(16)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    geometry = ([2, 2], [2, 2], [0, 0])
    packed = pooling.pack_indices(indices, side, *geometry)
    sizes, plane = list(x.shape), [side, side]
    gradient = torch.randn_like(y)
    whole = 2 * x.nbytes + bits.nbytes
    few = small.as_bytes(x)
    shape = list(x.shape), list(x.stride())
    ticket = files.moved(x)
    active = x.relu()
    packed_active = sparse.without_zeros(active, 9)
    return {
        "pack_above": (lambda: masks.pack_above(x, 0.0), x.nbytes + bits.nbytes),
        "pack_inside": (lambda: masks.pack_inside(x, 0.0, 6.0), x.nbytes + bits.nbytes),
        "pack_true": (lambda: masks.pack_true(kept), kept.nbytes + bits.nbytes),
        "masked": (lambda: masks.masked(x, bits), whole),
        "scaled": (lambda: masks.scaled(x, bits, 2.0, 0.0), whole),
        "normalised": (
            lambda: norms.normalised(x, channel, channel, channel, channel),
            2 * x.nbytes,
        ),
        "pack_indices": (
            lambda: pooling.pack_indices(indices, side, *geometry),
            indices.nbytes + packed.nbytes,
        ),
        "gradient_from_packed": (
            lambda: pooling.gradient_from_packed(gradient, packed, sizes, plane, *geometry),
            x.nbytes + y.nbytes + packed.nbytes,
        ),
        "gradient_of_both": (
            lambda: pooling.gradient_from_packed(gradient, packed, sizes, plane, *geometry, y, 0.0),
            x.nbytes + 2 * y.nbytes + packed.nbytes,
        ),
        "max_pool": (
            lambda: max_pool.max_pool(x, side // 2, side // 2, *geometry),
            x.nbytes + y.nbytes + packed.nbytes,
        ),
        "as_bytes": (lambda: small.as_bytes(x), x.nbytes + few.nbytes),
        "from_bytes": (lambda: small.from_bytes(few, *shape), x.nbytes + few.nbytes),
        "bfloat16": (x.bfloat16, x.nbytes * 3 // 2),
        "without_zeros": (
            lambda: sparse.without_zeros(active, 9),
            x.nbytes + packed_active.nbytes,
        ),
        "with_zeros": (
            lambda: sparse.with_zeros(packed_active, *shape, x.dtype),
            x.nbytes + packed_active.nbytes,
        ),
        "moved": (lambda: files.moved(x), 2 * x.nbytes),
        "moved_back": (
            lambda: files.moved_back(ticket, *shape, x.dtype, x.device),
            2 * x.nbytes,
        ),
        "clone": (x.clone, 2 * x.nbytes),
    }


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    made = works(options.elements)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.rounds):
        for name, (work, _) in made.items():
            times[name].append(seconds(work))
    speed = {n: size / statistics.median(times[n]) for n, (_, size) in made.items()}
    for name, rate in speed.items():
        print(f"{name:22s} {rate / 1e9:6.1f} GB/s  {rate / speed['clone']:5.0%} of clone")


if __name__ == "__main__":
    main()
