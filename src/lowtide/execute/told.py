"""Which node of a lowered graph runs? Said to whoever observes the step (`measure/observe.py`), at no other time.

While a step is observed, the graph runs through code that fx generates with a record around each node; otherwise it is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.graph_module import _forward_from_src

from lowtide.capture import meaning
from lowtide.execute.lower import ENCODES
from lowtide.measure.lives import GraphNode
from lowtide.measure.observe import graph_runs, observing

__all__ = ["told"]

log = logging.getLogger("lowtide")
_Run = Callable[[list[Any]], Any]


def told(run: _Run, gm: fx.GraphModule) -> _Run:
    """The same call, and its nodes are known while somebody observes."""
    recorded: list[Callable[..., Any] | None] = []

    def call(args: list[Any]) -> Any:
        if not observing():
            return run(args)
        if not recorded:
            recorded.append(_recorded(gm))
        forward = recorded[0]
        if forward is None:
            return run(args)
        with graph_runs(lambda: _nodes(gm)):
            return forward(gm, args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _recorded(gm: fx.GraphModule) -> Callable[..., Any] | None:
    """None where this version of fx cannot."""
    try:
        code = gm.graph.python_code("self", record_func=True)
        return _forward_from_src(code.src, {**code.globals, "torch": torch})
    except Exception as error:
        log.debug("the nodes of a graph are not told apart: %s", error)
        return None


def _nodes(gm: fx.GraphModule) -> list[GraphNode]:
    return [
        GraphNode(meaning.layer(node), meaning.source_line(node), ENCODES in node.meta)
        for node in gm.graph.nodes
    ]
