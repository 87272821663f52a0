"""Which compiled graphs run, and what do they hold right now? Stands between AOTAutograd and the compiled code.

During a survey every run is reported in full. At all other times a forward that keeps something for its backward leaves one weak
reference behind, so that a graph captured later in the same step knows what is taken: a microsecond per run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lowtide.execute.survey import Piece, Survey

__all__ = ["Watch"]

_Run = Callable[[list[Any]], Any]


class Watch:
    def __init__(self) -> None:
        self.survey: Survey | None = None
        self.marks: list[tuple[StorageWeakRef, int]] = []
        """One storage of each forward that waits for its backward, and what it keeps."""

    def forward(self, run: _Run, piece: Piece, marker: int | None) -> _Run:
        """`marker`: which result, made by the graph, tells by its life how long the forward waits for its backward."""

        def call(args: list[Any]) -> Any:
            survey = self.survey
            if survey is not None:
                survey.forward_begins(piece, args)
            results = run(args)
            if survey is not None:
                survey.forward_ends(results)
            if marker is not None:
                self.mark(results[marker], piece.kept)
            return results

        return _boxed(call)

    def backward(self, run: _Run, piece: Piece, names: Sequence[str | None]) -> _Run:
        def call(args: list[Any]) -> Any:
            survey = self.survey
            if survey is None:
                return run(args)
            survey.backward_begins(piece, names, args)
            results = run(args)
            survey.backward_ends(results)
            return results

        return _boxed(call)

    def mark(self, result: torch.Tensor, kept: int) -> None:
        self.marks = [m for m in self.marks if not m[0].expired()]
        self.marks.append((StorageWeakRef(result.untyped_storage()), kept))

    def kept_bytes(self) -> int:
        """What all graphs that wait for their backward keep for it."""
        return sum(kept for reference, kept in self.marks if not reference.expired())


def _boxed(call: _Run) -> _Run:
    call._boxed_call = True  # type: ignore[attr-defined]
    return call
