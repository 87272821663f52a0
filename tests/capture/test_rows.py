"""What is said to go by rows can be made by rows; what cannot is not said to."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from lowtide.capture.rows import row_inputs, share_arguments

aten = torch.ops.aten


def images(*sizes: int) -> Tensor:
    return torch.randn(sizes or (6, 3, 8, 8))


IDS = torch.tensor([1, 0, 2, 3, 1, 0])
INDEPENDENT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "pointwise": (lambda x, y: torch.where(x > 0, x * y, y), (images(6, 5), images(6, 5))),
    "broadcast": (lambda x, b, c: x * b + c, (images(6, 5), images(1, 5), images(5))),
    "matrix": (F.linear, (images(6, 5), images(4, 5), images(4))),
    "sequences": (lambda x, w: F.gelu(x @ w), (images(6, 3, 5), images(5, 4))),
    "attention": (lambda q, k: (q @ k.transpose(1, 2)).softmax(-1), (images(6, 4, 5),) * 2),
    "heads": (lambda x: x.view(6, 2, 4, 5).permute(0, 2, 1, 3).reshape(24, 10), (images(6, 8, 5),)),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1).relu(), (images(), images(4, 3, 3, 3))),
    "pools": (lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 2), (images(),)),
    "layer norm": (lambda x, w: F.layer_norm(x, (5,), w), (images(6, 4, 5), images(5))),
    "embedding": (lambda w, i: F.embedding(i, w), (images(4, 5), IDS)),
    "reductions": (lambda x: x.sum(1) + x.mean(-1) + x.amax(1), (images(6, 5),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (images(6, 5), images(6, 3))),
    "parts": (lambda x: x[:, 1:3].unsqueeze(1).squeeze(1), (images(6, 5),)),
    "expand": (lambda x: x.expand(6, 5).clone(), (images(6, 1),)),
    "softmax backward": (
        lambda g, y: aten._log_softmax_backward_data(g, y, 1, torch.float32), (images(6, 5),) * 2,
    ),
    "loss backward": (
        lambda g, y, i: aten.nll_loss_backward(g, y, i, None, 1, -100, torch.tensor(6.0)),
        (torch.tensor(1.5), images(6, 5), IDS),
    ),
    "flash": (lambda q: F.scaled_dot_product_attention(q, q, q), (images(6, 2, 4, 8),)),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEPENDENT)
def test_a_share_of_the_rows_from_the_same_share(case: str):
    function, given = INDEPENDENT[case]
    traced = make_fx(function, tracing_mode="fake")(*given)
    values: dict[fx.Node, Any] = {}
    inputs = iter(given)
    sliced: list[fx.Node] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = getattr(traced, node.target)
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.get)
            values[node] = node.target(*args, **kwargs)
            rows = row_inputs(node)
            if rows:
                check_shares(node, rows, values)
                sliced.append(node)
    assert sliced
    assert all(n.target is operator.getitem or n.op == "output" for n in after(sliced[-1]))


def after(node: fx.Node) -> Iterator[fx.Node]:
    while node.next.op != "root":
        node = node.next
        yield node


def check_shares(node: fx.Node, rows: tuple[fx.Node, ...], values: dict[fx.Node, Any]) -> None:
    whole = values[node] if isinstance(values[node], tuple) else (values[node],)
    for index in range(2):
        args, kwargs = share_arguments(
            node, 2, lambda n, i=index: values[n].chunk(2)[i] if n in rows else values[n]
        )
        made = node.target(*args, **kwargs)  # type: ignore[operator]
        for one, part in zip(whole, made if isinstance(made, tuple) else (made,), strict=True):
            if isinstance(one, Tensor) and one.dim():
                assert torch.equal(one.chunk(2)[index], part)


DEPENDENT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "softmax over rows": (lambda x: x.softmax(0), (images(6, 5),)),
    "softmax over rows, from the end": (lambda x: x.softmax(-2), (images(6, 5),)),
    "transposed": (lambda x: x.transpose(0, 1), (images(6, 5),)),
    "permuted": (lambda x: x.permute(1, 0, 2), (images(6, 5, 4),)),
    "a new first axis": (lambda x: x.unsqueeze(-3), (images(6, 5),)),
    "cat of rows": (lambda x: torch.cat([x, x]), (images(6, 5),)),
    "sum of rows": (lambda x: x.sum(0), (images(6, 5),)),
    "sum of all": (lambda x: x.sum(), (images(6, 5),)),
    "rows cut off": (lambda x: x[1:3], (images(6, 5),)),
    "one row for all": (lambda x: x.expand(6, 5), (images(1, 5),)),
    "statistics over rows": (lambda x: F.batch_norm(x, None, None, training=True), (images(),)),
    "a mask for all": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), (images(4, 2, 4, 8), images(4, 4)),
    ),
    "one row": (lambda x: x.relu(), (images(1, 5),)),
    "no rows": (lambda x: x.relu(), (torch.tensor(1.0),)),
}  # fmt: skip


@pytest.mark.parametrize("case", DEPENDENT)
def test_rows_that_depend_on_each_other(case: str):
    function, given = DEPENDENT[case]
    traced = make_fx(function, tracing_mode="fake")(*given)
    calls = [n for n in traced.graph.nodes if n.op == "call_function"]
    assert calls
    assert all(row_inputs(n) == () for n in calls if n.target is not operator.getitem)
