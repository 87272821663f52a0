"""How is a region called a slice at a time?

Goes in: what was captured and a rule's op whose outputs are those of one captured op, and whose inputs are where the region begins. Comes
out: a call that runs everything between them on equal shares of the rows, one after another, and puts the outputs together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import fx

from lowtide.capture.convert import Captured
from lowtide.capture.rows import row_inputs, share_arguments
from lowtide.ir.graph import Op
from lowtide.kernels.losses import picked, picked_loss

__all__ = ["sliced"]

aten = torch.ops.aten
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def sliced(
    captured: Captured,
    op: Op,
    count: int,
    last: Call | None = None,
    *,
    summed: bool = False,
    bare: bool = False,
) -> Call | None:
    """`last`: what to call in the place of the captured op, first the operands that are cut: one, or two if the results are to be
    `summed`. None where the region cannot be cut so. One slice is the whole, by the captured calls: what the others are compared with;
    `bare`, to compare, returns the outputs and then all that is inside."""
    sink = captured.nodes[op.of]
    if count > 1 and sink.target is aten.nll_loss_forward.default:
        return _loss(captured, op, sink, count, bare=bare)
    wanted = [captured.elements.get(name) for name in op.outputs]
    whole = [sink.meta["val"] if i is None else sink.meta["val"][i] for i in wanted]
    body = _Body(captured, op, count)
    try:
        made = body.run(sink) if last is None else body.end(last, 2 if summed else 1)
    except _UncutError:
        return None
    inside = body.inside(sink) if bare else {}
    ends = [made if i is None else body.element(made, i) for i in wanted]
    module = body.finish([*ends, *inside.values()])
    width = max((i for i in wanted if i is not None), default=-1) + 1
    whole += [node.meta["val"] for node in inside]
    layouts = [(t.shape, t.stride(), {"dtype": t.dtype, "device": t.device}) for t in whole]

    def slices(*tensors: torch.Tensor, over: torch.Tensor | None = None) -> Any:
        if count == 1:
            return placed(body.part(module, tensors, 0))
        if summed:
            return placed(_added(body.part(module, tensors, index) for index in range(count)))
        if over is not None:
            outputs = [over]
        else:
            outputs = [torch.empty_strided(size, stride, **kind) for size, stride, kind in layouts]
        for index in range(count):
            parts = body.part(module, tensors, index)
            for output, part in zip(outputs, parts, strict=True):
                _share(output, index, count).copy_(part)
            del parts, part  # before the next ones are made
        return placed(outputs)

    def placed(outputs: Sequence[torch.Tensor]) -> Any:
        if bare:
            return tuple(outputs)
        if not width:
            return outputs[0]
        found: list[torch.Tensor | None] = [None] * width
        for place, output in zip(wanted, outputs, strict=True):
            found[place or 0] = output
        return tuple(found)

    return _named(slices, module, count), tuple(node for node, _ in body.given), {}


def _added(parts: Iterator[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    total = [*next(parts)]
    for part in parts:
        for whole, one in zip(total, part, strict=True):
            whole.add_(one)
        del part, one  # before the next ones are made
    return total


def _share(tensor: torch.Tensor, index: int, count: int) -> torch.Tensor:
    rows = tensor.shape[0] // count
    return tensor.narrow(0, index * rows, rows)


def _loss(captured: Captured, op: Op, sink: fx.Node, count: int, *, bare: bool) -> Call | None:
    """Of a loss that reads one number from each row, the numbers by slices; then it adds them as ever."""
    given, target, weight, reduction, ignored = sink.args
    if weight is not None or not isinstance(ignored, int) or ignored >= 0 or reduction == 0:
        return None
    body = _Body(captured, op, count)
    try:
        rows = body.value(given, by_rows=True)  # type: ignore[arg-type]
        chosen = body.value(target, by_rows=True)  # type: ignore[arg-type]
    except _UncutError:
        return None
    inside = body.inside(sink) if bare else {}
    numbers = body.graph.call_function(picked, (rows, chosen))
    module = body.finish([numbers, *inside.values()])
    place = [node for node, _ in body.given].index(target)  # type: ignore[arg-type]

    def slices(*tensors: torch.Tensor) -> Any:
        parts = [body.part(module, tensors, index) for index in range(count)]
        numbers, *more = (torch.cat(part) for part in zip(*parts, strict=True))
        return (*picked_loss(numbers, tensors[place], reduction, ignored), *more)

    return _named(slices, module, count), tuple(node for node, _ in body.given), {}


def _named(slices: Any, module: fx.GraphModule, count: int) -> Callable[..., Any]:
    """The name says all that its cost depends on besides its operands."""
    code = f"{count} {module.code}"
    slices.__name__ = slices.__qualname__ = f"slices_{sha256(code.encode()).hexdigest()[:16]}"
    made: Callable[..., Any] = slices
    return made


class _UncutError(Exception):
    """Something inside is read whole, or is no tensor."""


class _Body:
    """One slice of the region, as it is written."""

    def __init__(self, captured: Captured, op: Op, count: int) -> None:
        self.captured, self.count = captured, count
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.given = {
            (node, by_rows): self.graph.placeholder(f"{'rows' if by_rows else 'whole'}_{number}")
            for number, node in enumerate(captured.tensors[name] for name in op.inputs)
            for by_rows in (True, False)
        }
        """What it may read, a slice or the whole of it."""

    def end(self, last: Call, cut: int) -> fx.Node:
        target, args, kwargs = last
        new = fx.map_arg(args, lambda n: self.value(n, n in args[:cut]))
        return self.graph.call_function(target, new, kwargs)

    def run(self, node: fx.Node) -> fx.Node:
        """Write the call, and before it what it needs."""
        if node not in self.made:
            if node.target is operator.getitem:
                self.made[node] = self.element(self.run(node.args[0]), node.args[1])  # type: ignore[arg-type]
            else:
                rows = row_inputs(node)
                if (not rows and self.count > 1) or node.op != "call_function":
                    raise _UncutError
                new = share_arguments(node, self.count, lambda n: self.value(n, n in rows))
                self.made[node] = self.graph.call_function(node.target, *new)  # type: ignore[arg-type]
        return self.made[node]

    def value(self, node: fx.Node, by_rows: bool) -> fx.Node:
        if (node, by_rows) in self.given:
            return self.given[node, by_rows]
        if (
            (not by_rows and self.count > 1)
            or node in self.captured.ambient
            or node.op == "placeholder"
        ):
            raise _UncutError
        return self.run(node)

    def element(self, made: fx.Node, index: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (made, index))

    def inside(self, sink: fx.Node) -> dict[fx.Node, fx.Node]:
        """What was written between, by the captured tensor it is a slice of."""
        return {
            node: new
            for node, new in self.made.items()
            if node is not sink and isinstance(node.meta["val"], torch.Tensor)
        }

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        for key in [key for key, placeholder in self.given.items() if not placeholder.users]:
            self.graph.erase_node(self.given.pop(key))
        return fx.GraphModule(torch.nn.Module(), self.graph)

    def part(self, module: fx.GraphModule, tensors: Sequence[torch.Tensor], index: int) -> Any:
        given = (
            _share(tensor, index, self.count) if by_rows else tensor
            for tensor, (_, by_rows) in zip(tensors, self.given, strict=True)
        )
        return module.forward(*given)
