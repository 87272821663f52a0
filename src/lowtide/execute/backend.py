"""How does torch.compile run our programs? The backend, on the aten executor.

The executor runs ATen ops one by one through fx's generated code, as PyTorch's own `aot_eager` does: same kernels, same bits,
nothing added per op. What is saved between forward and backward is never written to, so `retain_graph` stays legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._functorch import partitioners

from lowtide.capture.rnn import lower_rnns
from lowtide.execute.session import Session

__all__ = ["Backend"]


class Backend:
    """Callable as `torch.compile(backend=...)`; hashed by identity, as Dynamo's caches need."""

    __name__ = "lowtide"

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        lower_rnns(gm)
        with functorch_config.patch(unlift_effect_tokens=True):
            compiled: Callable[..., Any] = aot_autograd(
                fw_compiler=_run,
                bw_compiler=_run,
                inference_compiler=_run,
                partition_fn=self.partition,
                keep_inference_input_mutations=True,
            )(gm, example_inputs)
        return compiled

    def partition(
        self,
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        static = list(static_lifetime_input_indices or [])
        if not _has_backward(joint, num_fwd_outputs):
            return partitioners.default_partition(
                joint,
                joint_inputs,
                num_fwd_outputs=num_fwd_outputs,
                static_lifetime_input_indices=static,
            )
        return self.session.partition(joint, num_fwd_outputs, static)


def _has_backward(joint: fx.GraphModule, num_forward_outputs: int) -> bool:
    (output,) = joint.graph.find_nodes(op="output")
    flat = torch.utils._pytree.arg_tree_leaves(*output.args)
    return any(isinstance(o, fx.Node) for o in flat[num_forward_outputs:])


def _run(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
    return boxed_nop(gm, list(example_inputs))
