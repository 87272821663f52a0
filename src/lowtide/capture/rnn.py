"""How do recurrent layers reach the planner as one op per layer, and not as thousands?

Dynamo captures `nn.LSTM`, `nn.GRU` and `nn.RNN` (if told to: `rnn_config`) as one call of `torch.lstm`, `torch.gru`,
`torch.rnn_tanh` or `torch.rnn_relu`. AOTAutograd would unroll that call over time. `lower_rnns` replaces the called
function by ours of the same signature, which AOTAutograd traces to one `lowtide::*_layer` op per layer and direction.

Packed sequences, and whatever else is not understood, are left alone: slower to trace, still correct.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch.fx import GraphModule, Node

from lowtide.kernels import rnn

__all__ = ["lower_rnns", "rnn_config"]

_log = logging.getLogger(__name__)

_OURS: dict[Any, Callable[..., Any]] = {
    theirs: ours
    for ours in (rnn.lstm, rnn.gru, rnn.rnn_tanh, rnn.rnn_relu)
    for theirs in (
        getattr(torch, ours.__name__),
        getattr(torch._VF, ours.__name__),
        getattr(torch.ops.aten, ours.__name__).input,
    )
}
_PACKED = tuple(
    getattr(torch.ops.aten, name).data for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
)


def lower_rnns(gm: GraphModule) -> int:
    """Replace the RNN calls of a Dynamo graph and of its nested graphs, in place. Returns how many were replaced."""
    count = 0
    for part in gm.modules():
        if isinstance(part, GraphModule):
            count += _lower_graph(part)
    return count


def _lower_graph(gm: GraphModule) -> int:
    calls = [n for n in gm.graph.nodes if n.target in _OURS or n.target in _PACKED]
    lowered = 0
    for node in calls:
        reason = _why_not(node)
        if reason is not None:
            _log.debug("%s (%s) is left as it is: %s", node.name, node.target, reason)
            continue
        node.target = _OURS[node.target]
        lowered += 1
    if lowered:
        gm.recompile()
    return lowered


def _why_not(node: Node) -> str | None:
    """Why a call cannot be lowered, or None if it can."""
    if node.target in _PACKED or _is_packed(node):
        return "its input is a packed sequence"
    source = node.args[0] if node.args else node.kwargs.get("input")
    x = source.meta.get("example_value") if isinstance(source, Node) else None
    if not isinstance(x, Tensor):
        return "its input is not a known tensor"
    if x.layout != torch.strided or not x.is_floating_point():
        return f"its input is {x.layout} of {x.dtype}"
    if x.dim() != 3:
        return f"its input has {x.dim()} dimensions"
    return None


def _is_packed(node: Node) -> bool:
    # (input, hx, params, has_biases, ...) or (data, batch_sizes, hx, params, ...): one name, two signatures.
    return "batch_sizes" in node.kwargs or (
        len(node.args) > 3 and not isinstance(node.args[3], bool)
    )


def rnn_config() -> contextlib.AbstractContextManager[None]:
    """Lets Dynamo capture recurrent layers while it is entered; needed only while a frame is compiled."""
    if not hasattr(torch._dynamo.config, "allow_rnn"):
        return contextlib.nullcontext()
    return torch._dynamo.config.patch(allow_rnn=True)
