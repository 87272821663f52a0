"""The compiled LSTM layer: torch's numbers, and the same bits whether the gates were kept or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lowtide.kernels import rnn_fused, rnn_loop
from lowtide.kernels.rnn_fused import Way
from lowtide.rules.recurrent import stretch

pytestmark = pytest.mark.skipif(
    not rnn_fused.supports(torch.zeros(1, 1, 1), None), reason="torch has no MKL here"
)

SHAPES = [(7, 5, 12, 8), (50, 33, 20, 40), (260, 8, 6, 7), (3, 1, 5, 5), (2, 2048, 3, 4), (40, 64, 16, 16), (7, 9, 12, 50), (9, 40, 70, 38)]  # fmt: skip
"""Steps, batch, input width, hidden width. Of the last two, two threads share the units, and the samples."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def layer(shape: tuple[int, int, int, int], bias: bool = True) -> list[Any]:
    steps, batch, width, hidden = shape
    biases = [torch.randn(4 * hidden) if bias else None for _ in "ih"]
    weights = [torch.randn(4 * hidden, n) / n**0.5 for n in (width, hidden)]
    return [torch.randn(steps, batch, width), *torch.randn(2, batch, hidden), *weights, *biases]


def doubled(tensors: Any) -> list[Any]:
    return [None if t is None else t.double() for t in tensors]


def close(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    "way", [Way(True), Way(False), Way(True, 2, True), Way(False, 512, True)], ids=str
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape: tuple[int, int, int, int], reverse: bool, way: Way) -> None:
    tensors = layer(shape)
    needs = [True] * 7 + [False]
    *outputs, kept = rnn_fused.forward(*tensors, reverse, True, way)
    *same, states = rnn_fused.forward(*tensors, reverse, False, way)
    assert all(torch.equal(a, b) for a, b in zip(outputs, same, strict=True))
    assert len(states) == (shape[0] - 1) // stretch(*shape[:2], way.rows) * shape[1] * shape[3]
    *wanted, gates = rnn_loop.lstm_forward(*doubled(tensors), None, reverse)
    close(outputs, wanted)
    grads = tuple(torch.randn_like(t) for t in outputs)
    found = [rnn_fused.backward(grads, *tensors, outputs[0], w, reverse, needs, way) for w in (kept, states)]  # fmt: skip
    assert all(a is None or torch.equal(a, b) for a, b in zip(*found, strict=True))
    close(found[0], rnn_loop.lstm_backward(tuple(doubled(grads)), *doubled(tensors[:5]), None, wanted[0], gates, reverse, needs))  # fmt: skip


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("shape", SHAPES[-2:], ids=str)
def test_backward_may_have_other_threads_than_forward(
    shape: tuple[int, int, int, int], counts: tuple[int, int], threads: int
) -> None:
    tensors, needs = layer(shape), [True] * 7 + [False]
    y, *_, kept = rnn_fused.forward(*tensors, False, True)
    grads = (torch.randn_like(y), None, None)
    wanted = rnn_fused.backward(grads, *tensors, y, kept, False, needs)
    torch.set_num_threads(counts[0])
    y, *_, kept = rnn_fused.forward(*tensors, False, True)
    torch.set_num_threads(counts[1])
    found = rnn_fused.backward(grads, *tensors, y, kept, False, needs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [(True, False, False), (False, True, False), (False, False, True)])  # fmt: skip
def test_gradients_that_nobody_sent_are_zero(given: tuple[bool, ...]) -> None:
    tensors = layer(SHAPES[0], bias=False)
    needs = [True] * 5 + [False] * 3
    *outputs, kept = rnn_fused.forward(*tensors, False, True)
    sent = tuple(torch.randn_like(t) if g else None for t, g in zip(outputs, given, strict=True))
    zeros = tuple(torch.zeros_like(t) if s is None else s for t, s in zip(outputs, sent, strict=True))  # fmt: skip
    found = [rnn_fused.backward(g, *tensors, outputs[0], kept, False, needs) for g in (sent, zeros)]
    assert all(a is None or torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_inputs_may_lie_otherwise_and_are_not_written() -> None:
    x, h0, c0, *rest = layer((9, 6, 8, 8))
    other = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (x, h0, c0)]
    before = [t.clone() for t in other]
    plain, odd = (rnn_fused.forward(*t, *rest, False, True) for t in ((x, h0, c0), other))
    assert all(torch.equal(a, b) for a, b in zip(plain, odd, strict=True))
    grads = (torch.ones(1, 1, 8).expand(9, 6, 8), None, None)
    arguments = (*rest, odd[0], odd[3], False, [True] * 7 + [False])
    found = rnn_fused.backward(grads, *other, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, other, strict=True))
    same = rnn_fused.backward((grads[0].contiguous(), None, None), x, h0, c0, *arguments)
    assert all(a is None or torch.equal(a, b) for a, b in zip(found, same, strict=True))


def test_a_nan_is_not_hidden() -> None:
    tensors = layer(SHAPES[0])
    tensors[0][3, 2] = torch.nan
    y, *_ = rnn_fused.forward(*tensors, False, True)
    assert y[3:, 2].isnan().all()
    assert not y[:, :2].isnan().any()
