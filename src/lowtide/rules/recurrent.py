"""LSTM layers by a kernel of ours, which keeps a third of what torch's keeps, or a sixteenth.

Backward asks for the gates of all steps, four times the layer's output; torch's kernel on CPU keeps fifteen times. Or it computes them
again from the outputs, which hold all hidden states and are mostly kept anyway: that is a forward pass without waiting for one step after the
other.

Same mathematics, other sums: the last bits differ from those of torch's kernel, as these do between devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowtide.ir.graph import Graph, Kind, Op, Value
from lowtide.rules.base import Exactness, Proposal

__all__ = ["ROWS", "Recurrent", "kept_numbers", "stretch"]

ROWS = 1024
"""Of a GEMM over one stretch: enough for full speed."""
_LAYER, _BACKWARD = "lowtide.lstm_layer.default", "lowtide.lstm_layer_backward.default"


def stretch(steps: int, batch: int, rows: int = ROWS) -> int:
    """Steps that backward goes through at a time. Of each but the first the cell state at its start is kept."""
    return -(-steps // max(1, round(steps * batch / rows)))


def kept_numbers(
    steps: int, batch: int, hidden: int, gates: bool, rows: int = ROWS, every_cell: bool = False
) -> int:
    """In the workspace of a layer: cell states, those at the starts of stretches or all, and gates or none."""
    cells = steps if every_cell and gates else (steps - 1) // stretch(steps, batch, rows)
    return (cells + (4 * steps if gates else 0)) * batch * hidden


@dataclass(frozen=True)
class Recurrent:
    name: str = "recurrent"
    reason: str = "runs an LSTM layer with a kernel that keeps gates or states, not a workspace"
    exactness: Exactness = Exactness.KERNEL
    probed: bool = False

    def propose(self, graph: Graph) -> Iterable[Proposal]:
        for op in graph.captured:
            if op.target == _BACKWARD and op.rerun:
                layers = {
                    maker.name: maker
                    for name in op.inputs
                    for maker in graph.makers[name]
                    if maker.target == _LAYER and maker.outputs[-1] == name
                }
                for layer in layers.values():
                    if len(layer.outputs) > 1 and graph.value[layer.outputs[-1]].bytes:
                        for gates in (True, False):
                            yield self.with_kernel(graph, layer, op, gates)

    def with_kernel(self, graph: Graph, layer: Op, backward: Op, gates: bool) -> Proposal:
        *outputs, workspace = layer.outputs
        y = graph.value[outputs[0]]
        steps, batch, hidden = y.shape
        size = 4 * kept_numbers(steps, batch, hidden, gates)
        how = "gates" if gates else "states"
        kept = Value(f"{layer.name}.{how}", size, f"{layer.name}.{how}", Kind.ACTIVATION, y.layer, f"f32[{size // 4}]")  # fmt: skip
        forward = replace(
            layer, name=f"{layer.name}.with_{how}", outputs=(*outputs, kept.name), rule=self.name, of=layer.name,
        )  # fmt: skip
        finals = set(outputs[1:])
        inputs = (kept.name if n == workspace else n for n in backward.inputs if n not in finals)
        back = replace(
            backward, name=f"{backward.name}.from_{how}", inputs=tuple(inputs), rule=self.name, of=backward.name,
        )  # fmt: skip
        return Proposal((forward, back), (kept,))
