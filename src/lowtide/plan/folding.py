"""Which layers are the same one again and again? `layers.0`, `layers.1`, ... `layers.31` become `layers.0-31 x32`.

Goes in: paths of layers with their bytes. Comes out: fewer, larger rows. The first number of a path is what repeats; what follows it
says which part of the repeated layer is meant, to as many names as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Folded", "fold_layers"]


@dataclass(frozen=True, slots=True)
class Folded:
    name: str
    """`layers.0-31.mlp x32`; empty for what belongs to no layer."""
    layers: tuple[str, ...]
    """The paths that were put together."""
    bytes: int


def fold_layers(sizes: Iterable[tuple[str, int]], depth: int = 1) -> tuple[Folded, ...]:
    """Rows for paths that differ in their first number alone, largest first. `depth`: how many names to keep after the number."""
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for path, size in sizes:
        parts = path.split(".") if path else []
        first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
        kept = parts[: first + 1 + depth]
        group = groups.setdefault(tuple(p if i != first else "#" for i, p in enumerate(kept)), {})
        group[path] = group.get(path, 0) + size
    rows = [
        Folded(_name(shape, group), tuple(group), sum(group.values()))
        for shape, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.name)))


def _name(shape: tuple[str, ...], group: Iterable[str]) -> str:
    if "#" not in shape:
        return ".".join(shape)
    place = shape.index("#")
    numbers = sorted({int(path.split(".")[place]) for path in group})
    times = f" x{len(numbers)}" if len(numbers) > 1 else ""
    return ".".join((*shape[:place], _ranges(numbers), *shape[place + 1 :])) + times


def _ranges(numbers: list[int]) -> str:
    """`0-3,5`; with many gaps only from where to where: `0-9..`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > 3:
        return f"{numbers[0]}..{numbers[-1]}"
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)
