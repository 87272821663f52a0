"""What happened in one real step? Which captured graphs ran, in what order, and which storages passed between them.

The survey is active during a single step of `fit`. Each compiled forward and backward reports its arguments and results; of these only
weak references to their storages are kept, so that the step's memory is not changed by being watched. Afterwards `runs`
answers with one `Run` per forward that ran, and, for every value a graph handed out, how long somebody held it.

Who holds it is told by exclusion: a storage that is alive when a backward begins, and that no backward from there on reads, is held by
the caller or by eager code between the graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lowtide.capture import meaning
from lowtide.capture.convert import Captured
from lowtide.execute.pieces import FOREVER, Run
from lowtide.ir.graph import Graph
from lowtide.ir.program import Program

__all__ = ["Piece", "Survey", "piece_of", "storage_key"]


@dataclass(frozen=True, eq=False)
class Piece:
    """One captured graph. Values are named by position; None where there is no tensor."""

    number: int
    graph: Graph
    """With costs and makers; what the caller holds besides it is not counted in."""
    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    gradients: tuple[str | None, ...]
    """One for each input."""
    broken: str = ""
    """Where and why, if the graph ended in a graph break."""
    kept: int = 0
    """Bytes that its plan keeps from forward to backward."""
    program: Program | None = None
    """What it runs."""


def piece_of(
    captured: Captured,
    graph: Graph,
    number: int,
    forwards: int,
    broken: str,
    kept: int,
    program: Program,
) -> Piece:
    """`graph` is the captured one with costs; `forwards` counts the forward outputs."""
    outputs, _ = meaning.joint_outputs(captured.joint)
    inputs = [
        n for n in captured.joint.graph.find_nodes(op="placeholder") if not meaning.is_tangent(n)
    ]

    def names(nodes: Iterable[Any]) -> tuple[str | None, ...]:
        return tuple(getattr(n, "name", None) if n in known else None for n in nodes)

    known = set(captured.tensors.values())
    return Piece(
        number=number,
        graph=graph,
        inputs=names(inputs),
        outputs=names(outputs[:forwards]),
        gradients=names(outputs[forwards:]),
        broken=broken,
        kept=kept,
        program=program,
    )


@dataclass
class _Seen:
    piece: Piece
    inputs: dict[str, int]
    outputs: dict[str, int] = field(default_factory=dict)
    tangents: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    read: frozenset[int] = frozenset()
    """Everything backward was given."""
    backward_ran: bool = False


class Survey:
    def __init__(self) -> None:
        self.seen: list[_Seen] = []
        self.references: dict[int, StorageWeakRef] = {}
        self.alive: dict[int, frozenset[int]] = {}
        """For a run, what was alive when its backward began."""
        self.left: frozenset[int] = frozenset()
        self.current: _Seen | None = None

    def forward_begins(self, piece: Piece, args: Sequence[Any]) -> None:
        self.seen.append(_Seen(piece, self.keys(piece.inputs, args)))

    def forward_ends(self, results: Sequence[Any]) -> None:
        seen = self.seen[-1]
        seen.outputs = self.keys(seen.piece.outputs, results)

    def backward_begins(
        self, piece: Piece, names: Sequence[str | None], args: Sequence[Any]
    ) -> None:
        """`names`: of those arguments that are tangents."""
        # Autograd runs what was made last first.
        waiting = [s for s in self.seen if s.piece is piece and not s.backward_ran]
        seen = waiting[-1] if waiting else _Seen(piece, {})
        seen.backward_ran = True
        seen.read = frozenset(self.all_keys(args))
        seen.tangents = self.keys(names, args)
        if waiting:
            self.alive[self.seen.index(seen)] = self.living()
        self.current = seen

    def backward_ends(self, results: Sequence[Any]) -> None:
        if self.current is not None:
            self.current.gradients = self.keys(self.current.piece.gradients, results)

    def step_ends(self) -> None:
        """While the caller still holds what the model returned."""
        self.left = self.living()

    def living(self) -> frozenset[int]:
        return frozenset(k for k, r in self.references.items() if not r.expired())

    def keys(self, names: Sequence[str | None], tensors: Sequence[Any]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, tensor in zip(names, tensors):
            key = self.key(tensor) if name is not None else None
            if name is not None and key is not None:
                found[name] = key
        return found

    def all_keys(self, tensors: Iterable[Any]) -> Iterable[int]:
        return (k for t in tensors if (k := self.key(t)) is not None)

    def key(self, tensor: Any) -> int | None:
        """Unique while the survey lives: a weak reference keeps the address from being used again."""
        key = storage_key(tensor)
        if key is not None and key not in self.references:
            self.references[key] = StorageWeakRef(tensor.untyped_storage())
        return key

    # Afterwards.

    def runs(self) -> list[Run]:
        return [self.run(index, seen) for index, seen in enumerate(self.seen)]

    def run(self, index: int, seen: _Seen) -> Run:
        handed = {**seen.outputs, **seen.gradients}
        return Run(
            number=seen.piece.number,
            graph=seen.piece.graph,
            inputs=seen.inputs,
            outputs=seen.outputs,
            tangents=seen.tangents,
            gradients=seen.gradients,
            trains={
                gradient: source
                for gradient, source in zip(seen.piece.gradients, seen.piece.inputs)
                if gradient is not None and source is not None
            },
            until={name: self.until(key) for name, key in handed.items()},
        )

    def until(self, key: int) -> int:
        """The last segment at whose start somebody else held it; -1 for none, and forever if at the end of the step."""
        if key in self.left or len(self.alive) < len(self.seen):
            return FOREVER
        last = 2 * len(self.seen) - 1
        alive = [last - i for i, there in self.alive.items() if key in there]
        reads = [last - i for i, seen in enumerate(self.seen) if key in seen.read]
        beyond = max(alive, default=-1)
        return beyond if beyond > max(reads, default=-1) else -1

    def inputs(self) -> frozenset[int]:
        return frozenset(k for s in self.seen for k in s.inputs.values())


def storage_key(tensor: Any) -> int | None:
    if not isinstance(tensor, torch.Tensor):
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (
        NotImplementedError,
        RuntimeError,
    ):  # sparse, opaque, or a wrapper without memory of its own
        return None
