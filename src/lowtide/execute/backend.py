"""How does torch.compile run our programs? The backend, on the aten executor.

The executor runs ATen ops one by one through fx's generated code, as PyTorch's own `aot_eager` does: same kernels, same bits,
nothing added per op. Where the caller keeps the graph for another backward (`retain_graph`), what was saved for it is not written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._functorch import partitioners

from lowtide.capture import meaning
from lowtide.capture.rnn import lower_rnns
from lowtide.execute.session import Session
from lowtide.execute.survey import Piece
from lowtide.execute.told import told

__all__ = ["Backend"]

_PIECE = "lowtide"
"""In a forward's or backward's `meta`: which captured graph it is of."""


class Backend:
    """Callable as `torch.compile(backend=...)`; hashed by identity, as Dynamo's caches need."""

    __name__ = "lowtide"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pieces: list[Piece] = []

    def __call__(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        lower_rnns(gm)
        real = _real(example_inputs)
        try:
            with functorch_config.patch(unlift_effect_tokens=True):
                compiled: Callable[..., Any] = aot_autograd(
                    fw_compiler=self.compile_forward,
                    bw_compiler=self.compile_backward,
                    inference_compiler=_run,
                    partition_fn=partial(self.partition, broken=_broken(gm), real=real),
                    keep_inference_input_mutations=True,
                )(gm, example_inputs)
        finally:
            real.clear()  # what is compiled lives on; the batch must not
        return compiled

    def partition(
        self,
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        broken: str = "",
        real: Mapping[int, torch.Tensor] = MappingProxyType({}),
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        static = list(static_lifetime_input_indices or [])
        if not _has_backward(joint, num_fwd_outputs) or _is_region(joint):
            return partitioners.default_partition(
                joint,
                joint_inputs,
                num_fwd_outputs=num_fwd_outputs,
                static_lifetime_input_indices=static,
            )
        _guard_sizes(joint)
        given = meaning.placeholders_of(joint, real)
        forward, backward, piece = self.session.partition(
            joint, num_fwd_outputs, static, broken, given
        )
        forward.meta[_PIECE] = backward.meta[_PIECE] = len(self.pieces)
        self.pieces.append(piece)
        return forward, backward

    def compile_forward(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run, number = told(_run(gm, inputs), gm), gm.meta.get(_PIECE)
        if number is None:
            return run
        piece = self.pieces[number]
        return self.session.watch.forward(run, piece, _marker(gm, piece))

    def compile_backward(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run, number = told(_run(gm, inputs), gm), gm.meta.get(_PIECE)
        if number is None:
            return run
        given = gm.graph.find_nodes(op="placeholder")
        tangents = [str(n.target) if meaning.is_tangent(n) else None for n in given]
        return self.session.watch.backward(run, self.pieces[number], tangents)


def _real(inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """By position: plain real ones."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return {i: t for i, t in enumerate(inputs) if type(t) in plain}


def _has_backward(joint: fx.GraphModule, num_forward_outputs: int) -> bool:
    (output,) = joint.graph.find_nodes(op="output")
    flat = torch.utils._pytree.arg_tree_leaves(*output.args)
    return any(isinstance(o, fx.Node) for o in flat[num_forward_outputs:])


def _is_region(joint: fx.GraphModule) -> bool:
    """The graph of a nested_compile_region inside a step's graph, where it is one op that runs once: left as PyTorch splits it.
    It is traced while the step's backward is, so even its primals are tagged as backward."""
    given = joint.graph.find_nodes(op="placeholder")
    primals = [n for n in given if not meaning.is_tangent(n)]
    return any(n.meta.get("partitioner_tag") == "is_backward" for n in primals)


def _run(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
    return boxed_nop(gm, list(example_inputs))


def _guard_sizes(joint: fx.GraphModule) -> None:
    """A plan holds for the sizes it was made with and all smaller ones: anything larger is to be captured anew."""
    for node in joint.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt) and size.node.hint is not None:
                bool(size <= size.node.hint)  # evaluated for the guard it leaves behind


def _broken(gm: fx.GraphModule) -> str:
    """Where and why Dynamo ended this graph, if not at the end of the frame: `net.py:31 (Call to print)`."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return ""
    words = str(reason.reason).strip().splitlines()
    stack = list(reason.user_stack or ())
    place = f"{Path(stack[-1].filename).name}:{stack[-1].lineno} " if stack else ""
    return f"{place}({words[0] if words else 'no reason given'})"


def _marker(gm: fx.GraphModule, piece: Piece) -> int | None:
    """The position of a saved result that forward made, rather one that the caller does not get."""
    (output,) = gm.graph.find_nodes(op="output")
    results = list(output.args[0])
    given = _storages(gm.graph.find_nodes(op="placeholder"))
    returned = _storages(results[: len(piece.outputs)])
    made = [
        i for i in range(len(piece.outputs), len(results)) if not _storages([results[i]]) <= given
    ]
    private = [i for i in made if not _storages([results[i]]) <= returned]
    return next(iter(private or made), None)


def _storages(nodes: Sequence[Any]) -> set[int]:
    found = (n.meta.get("val") for n in nodes if isinstance(n, fx.Node))
    return {meaning.storage_key(t) for t in found if isinstance(t, torch.Tensor)}
