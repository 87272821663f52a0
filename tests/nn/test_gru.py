"""lowtide.nn.GRU in the place of torch.nn.GRU."""

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
    {}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}, {"bias": False},
]  # fmt: skip


def pair(*sizes: int, **options: Any) -> tuple[nn.GRU, nn.GRU]:
    torch.manual_seed(0)
    theirs, ours = nn.GRU(*sizes, **options), lowtide.nn.GRU(*sizes, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def gradients(module: nn.GRU, x: Any, *state: Any) -> list[Any]:
    module.zero_grad()
    if isinstance(x, torch.Tensor):
        x = x.clone().requires_grad_()
    y, h = module(x, *state)
    data = y if isinstance(y, torch.Tensor) else y.data
    (data.square().sum() + h.sum()).backward()
    return [data, h, getattr(x, "grad", None), *(p.grad for p in module.parameters())]


def agree(theirs: nn.GRU, ours: nn.GRU, *args: Any) -> None:
    for one, other in zip(gradients(ours, *args), gradients(theirs, *args), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keep", ["gates", "states"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_numbers(options: dict[str, Any], keep: str) -> None:
    theirs, ours = pair(12, 8, **options)
    ours.keep = keep
    agree(theirs, ours, torch.randn(7, 5, 12))


def test_one_sequence_given_states_and_packed() -> None:
    theirs, ours = pair(12, 8)
    x, state = torch.randn(7, 5, 12), torch.randn(1, 5, 8)
    packed = pack_padded_sequence(x, [7, 5, 5, 2, 1])
    for args in ((x[:, 0],), (x[:, 0], state[:, 0]), (x, state), (packed,)):
        agree(theirs, ours, *args)


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


def test_used_twice_and_with_dropout() -> None:
    theirs, ours = pair(8, 8, 2, dropout=0.5)
    x = torch.randn(6, 3, 8)

    def twice(module: nn.GRU) -> list[Any]:
        module.zero_grad()
        torch.manual_seed(3)
        y, state = module(x)
        z, _ = module(y, state)
        z.sum().backward()
        return [z, *(p.grad for p in module.parameters())]

    for one, other in zip(twice(ours), twice(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("keep", "most"), [("gates", 0.7), ("states", 0.3)])
def test_keeps_less(keep: str, most: float) -> None:
    kept = []
    theirs, ours = pair(64, 64, 2)
    ours.keep = keep
    x = torch.randn(40, 32, 64)
    for module in (theirs, ours):
        module(x)  # what is made once
        held: list[Any] = []
        kept.append(record(lambda m=module, h=held: h.append(m(x)), CPU).left)
    assert kept[1] < most * kept[0]


def test_refusals_name_the_numbers() -> None:
    _, ours = pair(12, 8)
    with pytest.raises(OptionError, match="gates"):
        lowtide.nn.GRU(3, 4, keep="gate")
    with pytest.raises(RuntimeError, match=r"12.*11"):
        ours(torch.randn(7, 5, 11))
    assert isinstance(ours, nn.GRU)
