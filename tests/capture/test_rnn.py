"""nn.LSTM, nn.GRU and nn.RNN through Dynamo and AOTAutograd: eager's numbers, one op per layer and direction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import default_partition
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from lowtide.capture.rnn import lower_rnns, rnn_config
from lowtide.kernels import rnn, rnn_onednn

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")

T, B, D, H = 6, 3, 4, 5  # steps, batch, input width, hidden width


class Backend:
    """As aot_eager, with the RNNs lowered; remembers the graphs it saw."""

    def __init__(self) -> None:
        self.lowered: list[int] = []
        self.joint: list[GraphModule] = []
        self.inference: list[GraphModule] = []

    def __call__(self, gm: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.lowered.append(lower_rnns(gm))
        return aot_autograd(
            fw_compiler=boxed_nop,
            bw_compiler=boxed_nop,
            inference_compiler=self.see_inference,
            partition_fn=self.see_joint,
        )(gm, inputs)

    def see_joint(self, joint: GraphModule, inputs: Any, **options: Any) -> Any:
        self.joint.append(joint)
        return default_partition(joint, inputs, **options)

    def see_inference(self, gm: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.inference.append(gm)
        return boxed_nop(gm, inputs)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Small ops on a busy machine spend their time waiting for each other's threads, so there is one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def compiled(module: Callable[..., Any], backend: Any, **options: Any) -> Callable[..., Any]:
    fast = torch.compile(module, backend=backend, **options)

    def call(*args: Any) -> Any:
        with rnn_config():
            return fast(*args)

    return call


def loss_of(outputs: Any) -> Tensor:
    torch.manual_seed(1)
    return sum((t * torch.randn_like(t)).sum() for t in tree_leaves(outputs))


def ops(gm: GraphModule) -> list[str]:
    return [n.target.name() for n in gm.graph.nodes if hasattr(n.target, "overloadpacket")]


def check(module: nn.Module, *args: Any, tolerance: float = 1e-5) -> Backend:
    """One training step, eager and captured: same outputs and gradients."""
    backend = Backend()
    results = []
    for run in (module, compiled(module, backend)):
        module.zero_grad()
        inputs = [a.detach().requires_grad_(a.requires_grad) for a in tree_leaves(args)]
        torch.manual_seed(2)
        outputs = run(*inputs)
        loss_of(outputs).backward()
        grads = [t.grad for t in (*inputs, *module.parameters()) if t.requires_grad]
        results.append([*tree_leaves(outputs), *grads])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert backend.lowered == [1]
    return backend


F32, F64 = torch.float32, torch.float64
CASES: list[tuple[type[nn.RNNBase], torch.dtype, dict[str, Any]]] = [
    (nn.LSTM, F32, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.LSTM, F64, {"bidirectional": True}),
    (nn.LSTM, F32, {"bias": False, "proj_size": 2}),
    (nn.GRU, F64, {"num_layers": 2, "bidirectional": True}),
    (nn.GRU, F32, {"bias": False, "batch_first": True}),
    (nn.RNN, F64, {"num_layers": 2}),
    (nn.RNN, F32, {"nonlinearity": "relu", "bidirectional": True}),
]


@pytest.mark.parametrize(
    ("kind", "dtype", "options"), CASES, ids=[f"{k.__name__}-{'-'.join(o)}" for k, _, o in CASES]
)
def test_a_step_is_eagers(
    kind: type[nn.RNNBase], dtype: torch.dtype, options: dict[str, Any]
) -> None:
    module = kind(D, H, **options).to(dtype)
    x = torch.randn(T, B, D, dtype=dtype, requires_grad=True)
    check(module, x, tolerance=1e-5 if dtype == F32 else 1e-10)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_bfloat16_trains(kind: type[nn.RNNBase]) -> None:
    x = torch.randn(T, B, D, dtype=torch.bfloat16, requires_grad=True)
    check(kind(D, H).bfloat16(), x, tolerance=0.1)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_unbatched_input_that_needs_no_gradient(kind: type[nn.RNNBase]) -> None:
    check(kind(D, H), torch.randn(T, D))


class Wrapped(nn.Module):
    def __init__(self, inner: nn.RNNBase, use: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.use = inner, use

    def forward(self, *args: Tensor) -> Any:
        return self.use(self.inner, *args)


USES: dict[str, Callable[..., Any]] = {
    "only y": lambda m, x, h, c: m(x, (h, c))[0],
    "only h_n": lambda m, x, h, c: m(x, (h, c))[1][0],
    "only c_n": lambda m, x, h, c: m(x, (h, c))[1][1],
    "all": lambda m, x, h, c: m(x, (h, c)),
}


@pytest.mark.parametrize("use", USES)
def test_given_states_and_unused_outputs(use: str) -> None:
    states = [torch.randn(1, B, H, requires_grad=True) for _ in range(2)]
    check(Wrapped(nn.LSTM(D, H), USES[use]), torch.randn(T, B, D), *states)


@pytest.mark.skipif(not rnn_onednn.supports(torch.zeros(1, 1, 1)), reason="no oneDNN")
def test_an_lstm_step_with_dropout_has_eagers_bits() -> None:
    check(nn.LSTM(D, H, 2, dropout=0.3), torch.randn(T, B, D, requires_grad=True), tolerance=0.0)


@pytest.mark.parametrize(("kind", "frozen"), [(nn.LSTM, "weight"), (nn.GRU, "bias_hh")])
def test_frozen_weights(kind: type[nn.RNNBase], frozen: str) -> None:
    module = kind(D, H)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    check(module, torch.randn(T, B, D))


@pytest.mark.parametrize(
    ("kind", "options"), [(nn.GRU, {}), (nn.RNN, {}), (nn.LSTM, {"proj_size": 2})], ids=str
)
def test_autocast_has_eagers_dtypes(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    def use(m: nn.Module, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return m(x)

    check(Wrapped(kind(D, H, **options), use), torch.randn(T, B, D), tolerance=0.1)


def test_autocast_lstm_is_low_precision_throughout() -> None:
    """Eager gives oneDNN bfloat16 here, which not every CPU can do."""
    module, x = nn.LSTM(D, H, 2), torch.randn(T, B, D)
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, c) = compiled(module, Backend())(x)
    assert {t.dtype for t in (y, h, c)} == {torch.bfloat16}
    torch.testing.assert_close(y.float(), module(x)[0], rtol=0.05, atol=0.05)
    loss_of(y).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in module.parameters())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_without_gradients(kind: type[nn.RNNBase]) -> None:
    module, x, backend = kind(D, H, 2, dropout=0.5).eval(), torch.randn(T, B, D), Backend()
    with torch.no_grad():
        torch.testing.assert_close(compiled(module, backend)(x), module(x))
    (graph,) = backend.inference
    assert sum(name.startswith("lowtide::") for name in ops(graph)) == 2
    for node in graph.graph.nodes:
        if node.name.startswith(("lstm_layer", "gru_layer")):
            assert node.args[-1] is False  # no workspace


def nodes_of_step(kind: type[nn.RNNBase], steps: int, layers: int) -> list[str]:
    torch._dynamo.reset()
    backend = Backend()
    compiled(kind(D, H, layers), backend)(torch.randn(steps, B, D))
    (joint,) = backend.joint
    return ops(joint)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_joint_graph_grows_with_layers_and_not_with_time(kind: type[nn.RNNBase]) -> None:
    short, long = nodes_of_step(kind, 2, 2), nodes_of_step(kind, 15, 2)
    assert short == long
    ours = [name for name in long if name.startswith("lowtide::")]
    assert len(ours) == 4  # two layers, forward and backward
    assert len(long) < 60


def test_the_workspace_is_a_value_of_the_joint_graph() -> None:
    backend = Backend()
    compiled(nn.LSTM(D, H), backend)(torch.randn(T, B, D))
    nodes = {n.name: n for n in backend.joint[0].graph.nodes}
    layer, backward = nodes["lstm_layer"], nodes["lstm_layer_backward"]
    (workspace,) = [n for n in layer.users if n.args[1] == 3]
    assert workspace in backward.args
    assert workspace.meta["val"].numel() > 0


def test_lengths_may_change() -> None:
    module = nn.Sequential(nn.Embedding(10, D), nn.LSTM(D, H))
    run = compiled(module, Backend(), dynamic=True)
    for steps in (3, 5):
        tokens = torch.randint(0, 10, (steps, B))
        y, _ = run(tokens)
        torch.testing.assert_close(y, module(tokens)[0])
        loss_of(y).backward()


def test_nested_graphs_are_lowered_too() -> None:
    def use(m: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(lambda v: m(v)[0] * 2, x, use_reentrant=False)

    check(Wrapped(nn.GRU(D, H), use), torch.randn(T, B, D, requires_grad=True))


def packed_call(name: str) -> GraphModule:
    graph = Graph()
    data, sizes, hx = (graph.placeholder(n) for n in ("data", "batch_sizes", "hx"))
    data.meta["example_value"] = torch.zeros(8, D)
    params = [graph.placeholder(f"p{k}") for k in range(4)]
    target = getattr(torch, name)
    graph.output(graph.call_function(target, (data, sizes, hx, params, True, 1, 0.0, True, False)))
    return GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_packed_sequences_are_left_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    gm = packed_call(name)
    with caplog.at_level(logging.DEBUG, "lowtide.capture.rnn"):
        assert lower_rnns(gm) == 0
    assert "packed sequence" in caplog.text
    assert all(n.target is not getattr(rnn, name) for n in gm.graph.nodes)


def test_a_packed_sequence_still_trains() -> None:
    module = nn.LSTM(D, H)
    lengths = torch.tensor([T, 4, 2])

    def use(x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return nn.utils.rnn.pad_packed_sequence(module(packed)[0])[0]

    x = torch.randn(T, B, D)
    torch.testing.assert_close(compiled(use, Backend())(x), use(x))


def test_the_setting_is_taken_back_and_costs_no_recompilation() -> None:
    assert torch._dynamo.config.allow_rnn is False
    backend, x = Backend(), torch.randn(T, B, D)
    run = torch.compile(nn.LSTM(D, H), backend=backend)
    for _ in range(3):
        with rnn_config():
            assert torch._dynamo.config.allow_rnn is True
            run(x)
        assert torch._dynamo.config.allow_rnn is False
        run(x)
    assert backend.lowered == [1]
