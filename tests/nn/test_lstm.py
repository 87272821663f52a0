"""lowtide.nn.LSTM in the place of torch.nn.LSTM."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import lowtide
from lowtide.errors import OptionError
from lowtide.measure.peak import record

CPU = torch.device("cpu")
OPTIONS: list[dict[str, Any]] = [
    {}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}, {"bias": False}, {"proj_size": 3},
]  # fmt: skip


def pair(*sizes: int, **options: Any) -> tuple[nn.LSTM, nn.LSTM]:
    torch.manual_seed(0)
    theirs, ours = nn.LSTM(*sizes, **options), lowtide.nn.LSTM(*sizes, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def gradients(module: nn.LSTM, *args: Any) -> list[Any]:
    module.zero_grad()
    y, (h, c) = module(*args)
    data = getattr(y, "data", y) if not isinstance(y, torch.Tensor) else y
    (data.square().sum() + h.sum() + c.square().sum()).backward()
    return [data, h, c, *(p.grad for p in module.parameters())]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("keep", ["gates", "states"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_numbers(options: dict[str, Any], keep: str) -> None:
    theirs, ours = pair(12, 8, **options)
    ours.keep = keep
    x = torch.randn(7, 5, 12)
    for one, other in zip(gradients(ours, x), gradients(theirs, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_one_sequence_given_states_and_packed() -> None:
    theirs, ours = pair(12, 8)
    x = torch.randn(7, 5, 12)
    states = (torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    packed = pack_padded_sequence(x, [7, 5, 5, 2, 1])
    for args in ((x[:, 0],), (x[:, 0], (states[0][:, 0], states[1][:, 0])), (x, states), (packed,)):
        for one, other in zip(gradients(ours, *args), gradients(theirs, *args), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_other_dtypes_and_autocast() -> None:
    theirs, ours = pair(12, 8)
    x = torch.randn(7, 5, 12)
    for dtype, near in ((torch.float64, 1e-9), (torch.bfloat16, 0.05)):
        made, wanted = (copy.deepcopy(m).to(dtype)(x.to(dtype))[0] for m in (ours, theirs))
        assert made.dtype == dtype
        torch.testing.assert_close(made, wanted, rtol=near, atol=near)
    with torch.autocast("cpu", torch.bfloat16):
        made = ours(x)[0]
    torch.testing.assert_close(made.float(), theirs(x)[0], rtol=0.05, atol=0.05)


def test_used_twice_in_one_graph() -> None:
    theirs, ours = pair(8, 8)
    x = torch.randn(6, 3, 8)

    def twice(module: nn.LSTM) -> list[Any]:
        module.zero_grad()
        y, state = module(x)
        z, _ = module(y, state)
        z.sum().backward()
        return [z, *(p.grad for p in module.parameters())]

    for one, other in zip(twice(ours), twice(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_dropout_draws_what_torch_draws() -> None:
    theirs, ours = pair(8, 8, 2, dropout=0.5)
    x = torch.randn(6, 3, 8)
    made = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        made.append(module(x)[0])
    torch.testing.assert_close(made[1], made[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("keep", "most"), [("gates", 0.4), ("states", 0.15)])
def test_keeps_less(keep: str, most: float) -> None:
    theirs, ours = pair(64, 64, 2)
    ours.keep = keep
    x = torch.randn(40, 32, 64)
    kept = []
    for module in (theirs, ours):
        module(x)  # what is made once
        held: list[Any] = []
        kept.append(record(lambda m=module, h=held: h.append(m(x)), CPU).left)
    assert kept[1] < most * kept[0]


def test_refusals_name_the_numbers() -> None:
    _, ours = pair(12, 8)
    with pytest.raises(RuntimeError, match=r"12.*11"):
        ours(torch.randn(7, 5, 11))
    with pytest.raises(OptionError, match="gates"):
        lowtide.nn.LSTM(3, 4, keep="gate")
    assert isinstance(ours, nn.LSTM)


def test_a_compiler_sees_an_op_and_gets_the_same_bits() -> None:
    torch.manual_seed(0)
    layer, x = lowtide.nn.LSTM(12, 8), torch.randn(7, 5, 12)
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with lowtide.nn.autotune.use("fused"):  # a compiler gets this one, too
        eager = layer(x)[0]
        compiled = torch.compile(layer, backend=look)(x)[0]
    assert any("lstm_layer" in name for name in seen)
    assert torch.equal(eager, compiled)


def test_second_derivatives_are_refused() -> None:
    layer, x = lowtide.nn.LSTM(12, 8), torch.randn(7, 5, 12, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()
