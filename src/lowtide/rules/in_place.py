"""Element-wise ops write over an input that nobody reads any more.

That is not another maker: the same op, told that it may. Whether an input is done with follows from the program, so there is nothing to
decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.ir.graph import Graph
from lowtide.rules.base import Exactness, Proposal

__all__ = ["ELEMENTWISE", "InPlace", "writable"]

ELEMENTWISE = frozenset(
    f"aten.{name}"
    for name in (
        "relu.default", "hardtanh.default", "leaky_relu.default", "elu.default", "sigmoid.default", "tanh.default", "gelu.default",
        "silu.default", "threshold_backward.default", "hardtanh_backward.default", "leaky_relu_backward.default",
        "sigmoid_backward.default", "tanh_backward.default", "gelu_backward.default", "silu_backward.default",
        "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "neg.default", "exp.default", "sqrt.default",
    )
)  # fmt: skip


@dataclass(frozen=True)
class InPlace:
    name: str = "in_place"
    reason: str = "writes an element-wise op's output over an input that is not read any more"
    exactness: Exactness = Exactness.EXACT
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target in ELEMENTWISE and len(op.outputs) == 1 and not op.effect:
                found = writable(graph, op.inputs, op.outputs[0])
                if found:
                    yield Proposal((), over={op.name: found})


def writable(graph: Graph, inputs: Iterable[str], output: str) -> tuple[str, ...]:
    """Those of the inputs that an op made, whole, of the output's size and type. Never the caller's or what it gets: it may hold on to
    that."""
    made = graph.value[output]
    given = {graph.storage(r.value) for r in graph.required}
    return tuple(
        name
        for name in dict.fromkeys(inputs)
        if not made.is_view
        and name not in given
        and not graph.value[name].is_view
        and graph.value[name].spec == made.spec
        and graph.value[name].bytes == made.bytes
        and name not in graph.exists_outside
    )
