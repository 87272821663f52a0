"""How is a training step captured without the memory to run it? On fake tensors: shapes without contents.

Goes in: a function that makes a model and a batch. It is called where every tensor is fake, so a model of any size can be made. Comes
out: the captured `Graph`, without costs (`cost/estimated.py` has some that need no device). The step is traced as `lowtide.fit` traces
it, by Dynamo and AOTAutograd, up to the moment where a partition is asked for; nothing is compiled or run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode

from lowtide.capture.convert import convert
from lowtide.capture.prepare import prepare
from lowtide.capture.rnn import lower_rnns, rnn_config
from lowtide.errors import CaptureError
from lowtide.ir.check import check_graph
from lowtide.ir.graph import Graph

__all__ = ["capture_fake"]


class _Seen(Exception):  # noqa: N818
    """Not an error: the joint graph was captured, and this is the way out of the compiler."""


def capture_fake(make: Callable[[], tuple[nn.Module, Sequence[Any]]]) -> Graph:
    """The step `model(*args)`, whose result is the loss. One graph, or a `CaptureError`."""
    found: list[Graph] = []

    def partition(
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: Any,
    ) -> Any:
        joint = prepare(joint, num_fwd_outputs)
        static = list(static_lifetime_input_indices or [])
        found.append(convert(joint, num_fwd_outputs, static).graph)
        raise _Seen

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        lower_rnns(gm)
        with functorch_config.patch(unlift_effect_tokens=True):
            return aot_autograd(
                fw_compiler=boxed_nop,
                bw_compiler=boxed_nop,
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )(gm, inputs)

    with FakeTensorMode(), rnn_config():
        model, args = make()
        try:
            torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(*args)
        except BackendCompilerFailed as error:
            if not isinstance(error.inner_exception, _Seen):
                raise CaptureError(
                    f"the step could not be captured on fake tensors: {error}"
                ) from error
    if not found:
        raise CaptureError(
            "no graph with a backward was captured: does the model train anything, and return its loss?"
        )
    check_graph(found[0])
    return found[0]
