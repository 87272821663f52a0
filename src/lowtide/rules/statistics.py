"""A batch norm in two: its statistics, and what is made of them in one pass.

In training a batch norm goes over its input three times. The statistics, two of these passes, are noted: so its output is made again in one. And they
are a result by themselves, made by a kernel of ours that takes a fraction of ATen's time (`kernels/batch_norm.py`). Then the output is
nothing but the input times one number of its channel plus another; and where all that reads it is a ReLU, a hardtanh or a sum with a shortcut, it
need not exist: they are made from the input, in the pass that would have made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Op
from lowtide.rules.base import Exactness, Proposal
from lowtide.rules.in_place import writable

__all__ = ["BATCH_NORMS", "NORMALISED", "STATISTICS", "Statistics", "notes_statistics"]

STATISTICS = "lowtide.statistics"
"""The target of ops that make all that a batch norm makes but its output ..."""
NORMALISED = "lowtide.normalised"
"""... and of those that make what other ops make of that output, from what the batch norm reads."""
_FUNCTIONAL = "aten._native_batch_norm_legit_functional.default"
BATCH_NORMS = (_FUNCTIONAL, "aten.native_batch_norm.default")
_SUM = "aten.add.Tensor"
_ACTIVATIONS = ("aten.relu.default", "aten.hardtanh.default")


@dataclass(frozen=True)
class Statistics:
    name: str = "statistics"
    reason: str = (
        "makes a batch norm's output, or what is made of it, from its noted statistics, in one pass"
    )
    exactness: Exactness = Exactness.EXACT
    probed: bool = True

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target in BATCH_NORMS and notes_statistics(graph, op):
                yield Proposal(tuple(self.parts(op)))
                for made in _made_of(graph, op.outputs[0]):
                    yield Proposal((self.from_input(graph, op, made),))

    def parts(self, op: Op) -> Iterator[Op]:
        if op.target == _FUNCTIONAL:
            yield replace(
                op, name=f"{op.name}.counted", target=STATISTICS, outputs=op.outputs[1:], rule=self.name, of=op.name,
            )  # fmt: skip
        yield replace(
            op, name=f"{op.name}.{self.name}", inputs=_read(op), outputs=op.outputs[:1],
            rerun=True, effect=False, rule=self.name, of=op.name,
        )  # fmt: skip

    def from_input(self, graph: Graph, norm: Op, chain: tuple[Op, ...]) -> Op:
        """The last op of the chain, without the norm's output and what comes between."""
        inside = {norm.outputs[0], *(o.outputs[0] for o in chain)}
        besides = tuple(n for o in chain for n in o.inputs if n not in inside)
        last = chain[-1]
        return replace(
            last, name=f"{last.name}.of_{norm.name}", target=NORMALISED, inputs=(*_read(norm), *besides), rule=self.name,
            of=last.name, over=writable(graph, (norm.inputs[0], *besides), last.outputs[0]),
        )  # fmt: skip


def _read(norm: Op) -> tuple[str, ...]:
    """Its inputs, and the mean and deviation that it noted."""
    return (*norm.inputs, *norm.outputs[1:3])


def notes_statistics(graph: Graph, op: Op) -> bool:
    """In training mode mean and 1 / deviation are there; else they are empty."""
    return len(op.outputs) >= 3 and all(graph.value[o].bytes > 0 for o in op.outputs[1:3])


def _made_of(graph: Graph, output: str) -> Iterator[tuple[Op, ...]]:
    """Chains of a sum, an activation, or both, that begin with this, as long as can be."""
    for op in _readers(graph, output):
        if op.target in _ACTIVATIONS:
            yield (op,)
        elif op.target == _SUM and len(op.inputs) == 2 and _alike(graph, op):
            further: list[tuple[Op, ...]] = [
                (op, o) for o in _readers(graph, op.outputs[0]) if o.target in _ACTIVATIONS
            ]
            yield from further or [(op,)]


def _readers(graph: Graph, name: str) -> list[Op]:
    return [o for o in graph.users[name] if not o.rule and o.rerun and len(o.outputs) == 1]


def _alike(graph: Graph, op: Op) -> bool:
    return len({graph.value[n].spec for n in (*op.inputs, *op.outputs)}) == 1
