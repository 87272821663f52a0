"""With which call does an op run? The captured call itself, or the form of it that a rule proposed.

A rule names an op's inputs and outputs and nothing else; what to call for it, in terms of the captured call, is said here, once,
for whoever prices it and whoever runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lowtide.capture.convert import Captured
from lowtide.errors import GraphError
from lowtide.ir.graph import Op

__all__ = ["Form", "form_of"]


class Form(NamedTuple):
    target: Callable[..., Any]
    args: tuple[Any, ...]
    """With nodes of the captured joint graph."""
    kwargs: dict[str, Any]


def form_of(captured: Captured, op: Op) -> Form:
    node = captured.nodes[op.of or op.name]
    plain = Form(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]
    if op.rule in ("", "replay"):
        return plain
    if op.rule == "split":
        return _masked(captured, op, plain)
    raise GraphError(f"nothing is known of how to run {op.name}, an op of rule {op.rule!r}")


def _masked(captured: Captured, op: Op, plain: Form) -> Form:
    """A backward whose last argument says which gradients to make: only those of this op's outputs."""
    wanted = {captured.elements[name] for name in op.outputs}
    mask = [index in wanted for index in range(len(plain.args[-1]))]
    return Form(plain.target, (*plain.args[:-1], mask), plain.kwargs)
