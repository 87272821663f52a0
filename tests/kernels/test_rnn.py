"""The recurrent layers as ops, against eager's nn.LSTM, nn.GRU and nn.RNN."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lowtide.kernels import rnn, rnn_fused, rnn_onednn
from lowtide.kernels.rnn_gru import gru_layer, gru_layer_backward, rnn_layer, rnn_layer_backward
from lowtide.kernels.rnn_lstm import choose_kernel, lstm_layer, lstm_layer_backward

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")

T, B, D, H = 6, 3, 4, 5  # steps, batch, input width, hidden width
OURS = {"LSTM": rnn.lstm, "GRU": rnn.gru, "RNN_TANH": rnn.rnn_tanh, "RNN_RELU": rnn.rnn_relu}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 0.1}


def onednn_available() -> bool:
    return rnn_onednn.supports(torch.zeros(1, 1, 1))


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """Small ops on a busy machine spend their time waiting for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def make(kind: str, **options: Any) -> nn.RNNBase:
    if kind.startswith("RNN"):
        return nn.RNN(D, H, nonlinearity=kind[4:].lower(), **options)
    return getattr(nn, kind)(D, H, **options)


def states_for(module: nn.RNNBase, batch: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    count = module.num_layers * (2 if module.bidirectional else 1)
    widths = [module.proj_size or H, H] if module.mode == "LSTM" else [H]
    return tuple(torch.randn(count, batch, w, dtype=dtype, requires_grad=True) for w in widths)


def run(
    function: Callable[..., Any],
    module: nn.RNNBase,
    x: Tensor,
    states: tuple[Tensor, ...],
    used: tuple[int, ...],
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs, and gradients of input, states and weights, of an RNN function on a module's weights."""
    outputs = function(
        x,
        states if module.mode == "LSTM" else states[0],
        module._flat_weights,
        module.bias,
        module.num_layers,
        module.dropout,
        module.training,
        module.bidirectional,
        module.batch_first,
    )
    torch.manual_seed(1)
    loss = sum((outputs[k] * torch.randn_like(outputs[k])).sum() for k in used)
    leaves = [t for t in (x, *states, *module.parameters()) if t.requires_grad]
    return list(outputs), list(torch.autograd.grad(loss, leaves, allow_unused=True))


def compare(module: nn.RNNBase, x: Tensor, used: tuple[int, ...] | None = None) -> None:
    batch = x.shape[0 if module.batch_first else 1]
    states = states_for(module, batch, x.dtype)
    used = used or tuple(range(1 + len(states)))
    theirs = getattr(torch, module.mode.lower())
    tolerance = TOLERANCE[x.dtype]
    expected = run(theirs, module, x, states, used)
    got = run(OURS[module.mode], module, x, states, used)
    for wanted, found in zip(itertools.chain(*expected), itertools.chain(*got), strict=True):
        if wanted is None:
            assert found is None or not found.any()
        else:
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


OPTIONS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("kind", OURS)
def test_values_and_gradients_are_eagers(
    kind: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    module = make(kind, **options).to(dtype)
    compare(module, torch.randn(T, B, D, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_projection(options: dict[str, Any], dtype: torch.dtype) -> None:
    module = make("LSTM", proj_size=2, **options).to(dtype)
    compare(module, torch.randn(T, B, D, dtype=dtype, requires_grad=True))


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=str)
@pytest.mark.parametrize("proj_size", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_lstm_outputs_that_nobody_uses(
    used: tuple[int, ...], proj_size: int, dtype: torch.dtype
) -> None:
    module = make("LSTM", bidirectional=True, proj_size=proj_size).to(dtype)
    compare(module, torch.randn(T, B, D, dtype=dtype, requires_grad=True), used)


@pytest.mark.parametrize("used", [(0,), (1,)], ids=str)
@pytest.mark.parametrize("kind", ["GRU", "RNN_TANH", "RNN_RELU"])
def test_other_outputs_that_nobody_uses(kind: str, used: tuple[int, ...]) -> None:
    module = make(kind, bidirectional=True).double()
    compare(module, torch.randn(T, B, D, dtype=torch.float64, requires_grad=True), used)


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("frozen", ["input", "weight_ih", "weight_hh", "bias_ih", "all weights"])
def test_what_needs_no_gradient_gets_none(kind: str, frozen: str) -> None:
    module = make(kind, num_layers=2).double()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(frozen != "all weights" and not name.startswith(frozen))
    x = torch.randn(T, B, D, dtype=torch.float64, requires_grad=frozen != "input")
    compare(module, x)


@pytest.mark.parametrize("shape", [(1, B), (T, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", OURS)
def test_one_step_or_one_sequence(kind: str, shape: tuple[int, int]) -> None:
    compare(make(kind, bidirectional=True), torch.randn(*shape, D, requires_grad=True))


@pytest.mark.parametrize("kind", OURS)
def test_dropout_draws_eagers_random_numbers(kind: str) -> None:
    module = make(kind, num_layers=3, dropout=0.4).double()
    x = torch.randn(T, B, D, dtype=torch.float64)
    states = states_for(module, B, x.dtype)
    results, after = [], []
    for function in (getattr(torch, module.mode.lower()), OURS[module.mode]):
        torch.manual_seed(3)
        results.append(run_forward(function, module, x, states))
        after.append(torch.get_rng_state())
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)
    assert torch.equal(*after)


def run_forward(
    function: Callable[..., Any], module: nn.RNNBase, x: Tensor, states: tuple[Tensor, ...]
) -> Tensor:
    hx = states if module.mode == "LSTM" else states[0]
    args = (module.num_layers, module.dropout, module.training, False, False)
    return function(x, hx, module._flat_weights, True, *args)[0]


@pytest.mark.skipif(not onednn_available(), reason="no oneDNN in this build")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
def test_onednn_gives_eagers_bits(options: dict[str, Any]) -> None:
    module = nn.LSTM(24, 40, **options)
    x = torch.randn(9, 7, 24, requires_grad=True)
    batch = x.shape[0 if module.batch_first else 1]
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = tuple(torch.randn(count, batch, 40, requires_grad=True) for _ in range(2))
    expected = run(torch.lstm, module, x, states, (0, 1, 2))
    got = run(rnn.lstm, module, x, states, (0, 1, 2))
    for wanted, found in zip(itertools.chain(*expected), itertools.chain(*got), strict=True):
        assert torch.equal(wanted, found)


def weights(gates: int, dtype: torch.dtype, bias: bool = True) -> list[Tensor | None]:
    w = [torch.randn(gates * H, n, dtype=dtype) for n in (D, H)]
    return [*w, *(torch.randn(gates * H, dtype=dtype) if bias else None for _ in range(2))]


def lstm_arguments(
    kernel: str, dtype: torch.dtype, reverse: bool = False, bias: bool = True, keep: bool = True
) -> tuple[Any, ...]:
    tensors = [torch.randn(*s, dtype=dtype) for s in ((T, B, D), (B, H), (B, H))]
    return (*tensors, *weights(4, dtype, bias), None, reverse, kernel, keep)


def one_state_arguments(gates: int, dtype: torch.dtype) -> tuple[Any, ...]:
    tensors = [torch.randn(*s, dtype=dtype) for s in ((T, B, D), (B, H))]
    return (*tensors, *weights(gates, dtype))


def layer_calls() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    f64 = torch.float64
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "lstm loop": (lstm_layer, lstm_arguments("loop", f64, reverse=True)),
        "lstm loop no bias": (lstm_layer, lstm_arguments("loop", f64, bias=False)),
        "lstm loop no workspace": (lstm_layer, lstm_arguments("loop", f64, keep=False)),
        "gru": (gru_layer, (*one_state_arguments(3, f64), False, True)),
        "gru reverse": (gru_layer, (*one_state_arguments(3, f64), True, True)),
        "rnn tanh": (rnn_layer, (*one_state_arguments(1, f64), False, False)),
        "rnn relu": (rnn_layer, (*one_state_arguments(1, f64), True, True)),
    }
    if onednn_available():
        f32 = torch.float32
        calls["lstm onednn"] = (lstm_layer, lstm_arguments("onednn", f32, reverse=True))
        calls["lstm onednn no bias"] = (lstm_layer, lstm_arguments("onednn", f32, bias=False))
        calls["lstm onednn no workspace"] = (lstm_layer, lstm_arguments("onednn", f32, keep=False))
    if rnn_fused.supports(torch.zeros(1, 1, 1), None):
        f32 = torch.float32
        calls["lstm fused"] = (lstm_layer, lstm_arguments("fused", f32, reverse=True))
        calls["lstm fused no bias"] = (lstm_layer, lstm_arguments("fused", f32, bias=False))
        calls["lstm fused without gates"] = (lstm_layer, lstm_arguments("fused", f32, keep=False))
    return calls


@pytest.mark.parametrize("name", layer_calls())
def test_a_second_run_gives_the_same_bits(name: str) -> None:
    op, arguments = layer_calls()[name]
    first, second = op(*arguments), op(*arguments)
    # oneDNN leaves parts of its workspace unwritten: only what is computed from it can be compared.
    opaque = "onednn" in name
    for a, b in zip(first[: 3 if opaque else None], second, strict=False):
        assert torch.equal(a, b)
    if opaque and arguments[-1]:
        backwards = [onednn_backward(arguments, outputs) for outputs in (first, second, first)]
        for grads in zip(*backwards, strict=True):
            assert torch.equal(grads[0], grads[1])
            assert torch.equal(grads[0], grads[2])


def onednn_backward(arguments: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    *tensors, reverse, kernel, _ = arguments
    needs = [*(t is not None for t in tensors[:7]), False]
    y, h_n, c_n, workspace = outputs
    grads = (torch.ones_like(y), None, torch.ones_like(c_n))
    return lstm_layer_backward(*grads, *tensors, y, h_n, c_n, workspace, reverse, kernel, needs)


@pytest.mark.parametrize("name", layer_calls())
def test_fake_outputs_have_the_real_sizes(name: str) -> None:
    op, arguments = layer_calls()[name]
    assert_fake_is_real(op, arguments)


def assert_fake_is_real(op: Any, arguments: tuple[Any, ...]) -> None:
    real = op(*arguments)
    with FakeTensorMode() as mode:
        fake = op(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
    for f, r in zip(fake, real, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (r.shape, r.stride(), r.dtype)


@pytest.mark.skipif(not onednn_available(), reason="no oneDNN in this build")
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (35, 8, 30, 30), (5, 64, 300, 16), (3, 2, 7, 256)])
def test_onednn_workspace_size_is_known_before_the_run(shape: tuple[int, int, int, int]) -> None:
    steps, batch, width, hidden = shape
    with FakeTensorMode():
        known = rnn_onednn.workspace_bytes(torch.empty(steps, batch, width), hidden)
    module = nn.LSTM(width, hidden)
    x, state = torch.randn(steps, batch, width), torch.randn(batch, hidden)
    with torch.no_grad():
        *_, real = lstm_layer(x, state, state, *module._flat_weights, None, False, "onednn", True)
    assert real.numel() == known
    assert real.dtype == torch.uint8


def test_autocast_shapes_of_mixed_dtypes_are_known() -> None:
    low = [t if t is None else t.bfloat16() for t in one_state_arguments(3, torch.float32)]
    wide = torch.randn(B, H)
    assert_fake_is_real(gru_layer, (low[0], wide, *low[2:], False, True))
    x, _, _, *rest = lstm_arguments("loop", torch.bfloat16)
    w_hr, w_hh = torch.randn(2, H).bfloat16(), torch.randn(4 * H, 2).bfloat16()
    mixed = (x, torch.randn(B, 2), wide, rest[0], w_hh, *rest[2:4], w_hr, *rest[5:])
    assert_fake_is_real(lstm_layer, mixed)


@pytest.mark.parametrize("name", layer_calls())
def test_layer_ops_pass_opcheck(name: str) -> None:
    op, arguments = layer_calls()[name]
    trains = "no workspace" not in name
    ready = [
        a.requires_grad_(trains) if isinstance(a, Tensor) and k != 1 else a
        for k, a in enumerate(arguments)
    ]
    utils = ["test_schema", "test_faketensor", "test_autograd_registration"]
    # The unwritten parts of oneDNN's workspace would be compared too.
    if "onednn" not in name:
        utils.append("test_aot_dispatch_static")
    torch.library.opcheck(op, tuple(ready), test_utils=utils)


def test_backward_ops_pass_opcheck() -> None:
    utils = ["test_schema", "test_faketensor"]
    *tensors, reverse, kernel, keep = lstm_arguments("loop", torch.float64)
    y, _, _, workspace = lstm_layer(*tensors, reverse, kernel, keep)
    needs = [True] * 7 + [False]
    saved = (*tensors, y, None, None, workspace, reverse, kernel, needs)
    torch.library.opcheck(lstm_layer_backward, (y, None, None, *saved), test_utils=utils)
    state = one_state_arguments(3, torch.float64)
    y, _, workspace = gru_layer(*state, True, True)
    saved = (*state, y, workspace, True, [True, False] * 3)
    torch.library.opcheck(gru_layer_backward, (y, None, *saved), test_utils=utils)
    state = one_state_arguments(1, torch.float64)
    y, h_n = rnn_layer(*state, False, True)
    saved = (*state, y, False, True, [True] * 6)
    torch.library.opcheck(rnn_layer_backward, (None, h_n, *saved), test_utils=utils)


def test_the_kernel_is_chosen_as_eager_does() -> None:
    x = torch.zeros(T, B, D)
    assert choose_kernel(x.double(), None) == "loop"
    assert choose_kernel(x, torch.zeros(2, H)) == "loop"
    assert choose_kernel(x[:, :0], None) == "loop"
    if onednn_available():
        assert choose_kernel(x, None) == "onednn"
        with torch.backends.mkldnn.flags(enabled=False):
            assert choose_kernel(x, None) == "loop"


def test_without_gradients_no_workspace_is_made() -> None:
    module, x = nn.LSTM(D, H), torch.randn(T, B, D)
    state = torch.zeros(1, B, H)
    args = (x, (state, state), module._flat_weights, True, 1, 0.0, True, False, False)
    with torch.no_grad():
        for wanted, found in zip(torch.lstm(*args), rnn.lstm(*args), strict=True):
            assert torch.equal(wanted, found)
