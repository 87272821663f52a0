"""How many numbers of these tensors are not zero? Counted once, when a plan is made, for the forms whose size depends on it.

Goes in: a captured graph with the real tensors behind its placeholders, and what rules proposed. Comes out: the graph in which each tensor has, of the
sizes that were proposed for it without its zeros, only the one that has room for what was counted. What was not counted (symbolic sizes,
no real tensors, collectives on the way) has none.

Forward runs for it, as it was captured and only as far as the tensors are needed: one pass that keeps nothing for backward. Random generators
are left as they were found.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import fx

from lowtide.capture import meaning
from lowtide.capture.convert import Captured
from lowtide.ir.graph import Graph, Op
from lowtide.kernels.sparse import nonzero
from lowtide.measure.timing import apart
from lowtide.rules.sparse import parts_needed, parts_of

__all__ = ["with_room_as_counted"]


def with_room_as_counted(captured: Captured, graph: Graph) -> Graph:
    offered: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.rule == "sparse" and op.target == "lowtide.encode":
            offered.setdefault(op.inputs[0], []).append(op)
    if not offered:
        return graph
    counts = _counts(captured, offered)
    gone = set()
    for name, ops in offered.items():
        elements = graph.value[name].elements
        needed = parts_needed(counts.get(name, elements), elements)
        rooms = {op.name: parts_of(op.outputs[0]) for op in ops}
        least = min((parts for parts in rooms.values() if parts >= needed), default=None)
        gone |= {name for name, parts in rooms.items() if parts != least}
    return graph.without(gone)


def _counts(captured: Captured, names: Collection[str]) -> dict[str, int]:
    runnable = _runnable(captured)
    wanted = {captured.tensors[name]: name for name in names if captured.tensors[name] in runnable}
    if not wanted:
        return {}
    forward = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    counts, needed = [], _ancestors(wanted)
    for node in captured.joint.graph.nodes:
        if node in needed:
            copies[node] = forward.node_copy(node, copies.__getitem__)
        if node in wanted:
            counts.append(forward.call_function(nonzero, (copies[node],)))
    forward.output(tuple(counts))
    given = [captured.given[n.name] for n in copies if n.op == "placeholder"]
    device = next(iter(wanted)).meta["val"].device
    with apart(device):
        found = fx.GraphModule(captured.joint, forward)(*given)
    order = [wanted[node] for node in copies if node in wanted]
    return dict(zip(order, found, strict=True))


def _runnable(captured: Captured) -> set[fx.Node]:
    """What can be computed from what was given, and may be, once more."""
    found: set[fx.Node] = set()
    for node in captured.joint.graph.nodes:
        if node.op == "placeholder":
            there = node.name in captured.given
        elif node.op == "call_function":
            there = _may_run(node) and all(n in found for n in node.all_input_nodes)
        else:
            there = node.op == "get_attr"
        if there:
            found.add(node)
    return found


def _may_run(node: fx.Node) -> bool:
    if meaning.is_random(node):
        return not meaning.has_own_generator(node)
    return not meaning.has_effect(node)


def _ancestors(nodes: Collection[fx.Node]) -> set[fx.Node]:
    """These, and all that they are made from."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += node.all_input_nodes
    return found
