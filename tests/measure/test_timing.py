"""Costs are measured once, byte-exact in workspace, sane in seconds, and nothing around is disturbed."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lowtide.cost.store import Cost, CostStore
from lowtide.measure.inputs import normal, real_inputs
from lowtide.measure.peak import record
from lowtide.measure.signature import signature
from lowtide.measure.timing import Call, environment, measure_calls

CPU = torch.device("cpu")
MIB = 2**20
aten = torch.ops.aten


@pytest.fixture
def store(tmp_path: Path) -> CostStore:
    return CostStore(tmp_path, "env")


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(signature(function, args, kwargs), function, args, kwargs)


def cost(store: CostStore, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Cost:
    (found,) = measure_calls([call(function, *args, **kwargs)], store).values()
    return found


def mebibytes(count: int) -> torch.Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8)


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Counted:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.times = function, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.times += 1
        return self.function(*args, **kwargs)


def test_each_signature_is_measured_once(tmp_path: Path) -> None:
    add = Counted(torch.add)
    calls = [Call("a", add, (torch.ones(9), 1)), Call("b", torch.neg, (torch.ones(9),))]
    first = measure_calls([*calls, calls[0], calls[1]], CostStore(tmp_path, "env"))
    assert set(first) == {"a", "b"}
    assert add.times > 1
    add.times = 0
    assert measure_calls(calls, CostStore(tmp_path, "env")) == first
    assert add.times == 0
    assert measure_calls(calls, CostStore(tmp_path, "another")) != first
    assert add.times > 0


def test_progress(store: CostStore) -> None:
    calls = [Call(name, torch.neg, (torch.ones(2),)) for name in "abcab"]
    measure_calls(calls[:1], store)
    said: list[tuple[int, int, int]] = []
    measure_calls(calls, store, progress=lambda *numbers: said.append(numbers))
    assert said == [(1, 3, 1), (2, 3, 1), (3, 3, 1)]
    said.clear()
    measure_calls(calls, store, progress=lambda *numbers: said.append(numbers))
    assert said == [(3, 3, 3)]


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    calls = [Call("a", torch.neg, (torch.ones(2),)), Call("b", interrupt)]
    with pytest.raises(KeyboardInterrupt):
        measure_calls(calls, CostStore(tmp_path, "env"))
    assert CostStore(tmp_path, "env").get("a") is not None


def test_workspace_is_the_peak_less_the_outputs(store: CostStore) -> None:
    def op() -> tuple[torch.Tensor, torch.Tensor]:
        scratch = mebibytes(4)
        small = mebibytes(1)
        del scratch
        return small, mebibytes(2)

    assert cost(store, op).workspace == 2 * MIB


def test_an_output_that_is_replaced_is_workspace(store: CostStore) -> None:
    def op() -> torch.Tensor:
        result = mebibytes(2)
        return torch.cat([result, result[:0]])

    assert cost(store, op).workspace == 2 * MIB


def test_what_is_allocated_once_does_not_count(store: CostStore) -> None:
    kept: list[torch.Tensor] = []

    def op() -> torch.Tensor:
        if not kept:
            mebibytes(16)
            kept.append(mebibytes(8))
        return mebibytes(1)

    assert cost(store, op).workspace == 0


@pytest.mark.parametrize(
    "function",
    [lambda x: x[2:].t(), lambda x: x.relu_(), lambda x: (x, x.relu()), lambda x: None],
    ids=["view", "in place", "its input", "nothing"],
)
def test_aliases_need_no_workspace(store: CostStore, function: Callable[..., Any]) -> None:
    assert measure_calls([Call("x", function, (torch.ones(64, 64),))], store)["x"].workspace == 0


def test_the_users_tensors_are_not_written(store: CostStore) -> None:
    mine = torch.ones(5)
    assert cost(store, aten.add_.Tensor, mine, 1).how == "measured"
    assert torch.equal(mine, torch.ones(5))


def in_context(gm: fx.GraphModule, spaces: dict[str, int]) -> Callable[[list[Any]], Any]:
    """Runs a compiled graph and notes each op's workspace, as seen with the step's own tensors."""

    def run(args: list[Any]) -> Any:
        env = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), args))
        args.clear()
        for node in gm.graph.nodes:
            if node.op == "output":
                return fx.map_arg(node.args[0], env.__getitem__)
            if node.op == "call_function":
                inputs, named = fx.map_arg((node.args, dict(node.kwargs)), env.__getitem__)
                seen = record(lambda: node.target(*inputs, **named), CPU)  # noqa: B023
                env[node] = seen.result
                spaces[node.name] = seen.peak - seen.left
        raise AssertionError

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class Mixed(nn.Module):
    """Most of what training graphs have: convolution, norms, dropout, pooling, attention, embedding, loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.up = nn.ConvTranspose2d(8, 16, 2, 2)
        self.words, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(16, 50)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.up(self.stem(images)).flatten(2).transpose(1, 2)[:, :32] + self.words(tokens)
        q = self.drop(self.norm(x)).view(-1, 32, 2, 8).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        logits = self.head(mixed.transpose(1, 2).reshape(-1, 16))
        return nn.functional.cross_entropy(logits, tokens.flatten())


def test_workspaces_of_a_step_are_those_seen_in_context(store: CostStore) -> None:
    calls: dict[str, Call] = {}
    spaces: dict[str, int] = {}

    def compiler(gm: fx.GraphModule, example: Any) -> Callable[[list[Any]], Any]:
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
                calls[node.name] = Call(
                    signature(node.target, args, kwargs), node.target, args, kwargs
                )
        return in_context(gm, spaces)

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Mixed()
    model.compile(backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))
    batch = torch.randn(4, 3, 16, 16), torch.randint(0, 50, (4, 32))
    for _ in range(2):  # the second step's numbers stay: caches are warm
        model(*batch).backward()
    costs = measure_calls(list(calls.values()), store)
    assert {c.how for c in costs.values()} == {"measured"}
    assert {n: costs[c.signature].workspace for n, c in calls.items()} == {
        n: spaces[n] for n in calls
    }
    assert sum(spaces[n] > 0 for n in calls) >= 5


def test_seconds_are_about_right(store: CostStore) -> None:
    found = cost(store, spin, 0.004).seconds
    # On a busy machine it is the processor time of one thread, shared among threads it does not use.
    assert 0.9 * 0.004 / torch.get_num_threads() < found < 0.008


def test_more_work_takes_longer(store: CostStore) -> None:
    small, large = torch.empty(64, 64), torch.empty(768, 768)
    assert 10 * cost(store, aten.mm.default, small, small).seconds < (
        cost(store, aten.mm.default, large, large).seconds
    )


def test_a_long_op_runs_a_few_times_only(store: CostStore) -> None:
    slow = Counted(lambda: spin(0.08))
    measure_calls([Call("slow", slow)], store)
    warm, recorded, timed, if_disturbed = 1, 1, 2, 2
    assert slow.times <= recorded + 2 * (warm + timed + if_disturbed)


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowtide.measure.timing.waited", lambda: 0.0)
    monkeypatch.setattr("lowtide.measure.timing.LOOKS", 3)


def test_the_middle_of_three_looks_counts(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    pace = [0.03]
    op = Counted(lambda: spin(pace[0]))
    first = measure_calls([Call("op", op)], store)["op"]
    assert first.seconds > 0.02
    assert len(first.looks) == 2
    pace[0] = 0.01
    found = measure_calls([Call("op", op)], store)["op"]
    assert found.seconds > 0.02
    assert min(found.looks) < 0.02
    assert len(found.looks) == 3
    assert CostStore(store.folder, "env").get("op") == found
    op.times = 0
    assert measure_calls([Call("op", op)], store) == {"op": found}
    assert op.times == 0


def test_a_look_at_a_quiet_machine_replaces_one_at_a_busy_machine(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    store.put("op", Cost(0.001, 7))
    found = measure_calls([Call("op", lambda: spin(0.01))], store)["op"]
    assert found.seconds > 0.008
    assert (found.workspace, len(found.looks)) == (7, 1)


def test_a_busy_machine_does_not_lengthen_costs(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run waits for a processor, so that the clock shows ten times the work."""
    waited = [0.0]

    def op() -> None:
        spin(0.002)
        if torch.get_num_threads() > 1:
            time.sleep(0.02)
            waited[0] += 0.02

    monkeypatch.setattr("lowtide.measure.timing.waited", lambda: waited[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert measure_calls([Call("op", op)], store)["op"].seconds < 0.004
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_call_that_fails_is_estimated(store: CostStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lowtide.measure")
    good, bad = (
        call(aten.relu.default, torch.ones(2)),
        call(aten.mm.default, *[torch.ones(2, 3)] * 2),
    )
    costs = measure_calls([bad, good], store)
    assert costs[bad.signature].how == "estimated"
    assert costs[bad.signature].seconds > 0
    assert costs[good.signature].how == "measured"
    assert sum("estimated" in r.getMessage() for r in caplog.records) == 1


def test_a_call_that_would_not_fit_is_not_run(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.measure.timing.available_bytes", lambda device: 10 * MIB)
    small, large = Counted(torch.relu), Counted(torch.relu)
    with FakeTensorMode():
        half, three = torch.empty(MIB // 8), torch.empty(3 * MIB)
    costs = measure_calls([Call("small", small, (half,)), Call("large", large, (three,))], store)
    assert (costs["small"].how, costs["large"].how) == ("measured", "estimated")
    assert large.times == 0


def test_outputs_that_would_not_fit_count_too(
    store: CostStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowtide.measure.timing.available_bytes", lambda device: 10 * MIB)
    with FakeTensorMode():
        column, row = torch.empty(1024, 1), torch.empty(1, 1024)
    found = cost(store, aten.mm.default, column, row)
    assert found.how == "estimated"
    assert found.seconds == pytest.approx(4 * MIB / 25e9 / 0.6, rel=0.1)


def test_a_size_that_is_not_known_is_estimated(store: CostStore) -> None:
    env = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    with FakeTensorMode(shape_env=env):
        unknown = torch.empty(env.create_unbacked_symint())
    assert cost(store, aten.relu.default, unknown).how == "estimated"


def test_probabilities_and_indices_are_valid(store: CostStore) -> None:
    with FakeTensorMode():
        table, index = torch.empty(5, 3), torch.empty(7, dtype=torch.int64)
        gradient = torch.empty(7, 3)
    assert cost(store, aten.bernoulli.default, table).how == "measured"
    assert cost(store, aten.embedding.default, table, index).how == "measured"
    found = cost(store, aten.embedding_dense_backward.default, gradient, index, 5, -1, False)
    assert found.how == "measured"


def test_inputs_have_the_same_geometry() -> None:
    with FakeTensorMode():
        likes = (
            torch.empty(4, 6).t(),
            torch.empty(8, 1).expand(8, 100),
            torch.empty(9, 9)[2:5, ::3],
            torch.empty(0, 3),
            torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last),
            torch.empty(3, dtype=torch.bool),
            torch.empty((), dtype=torch.bfloat16),
        )
    made, _ = real_inputs((likes,), {}, normal)
    for like, real in zip(likes, made[0], strict=True):
        assert not isinstance(real, FakeTensor)
        assert (real.shape, real.stride(), real.dtype) == (like.shape, like.stride(), like.dtype)
    assert made[0][1].untyped_storage().nbytes() == 8 * 4
    assert made[0][0].abs().min() >= 1e-3
    assert not made[0][5].any()


def test_one_tensor_read_twice_is_one_tensor() -> None:
    fake = FakeTensorMode().from_tensor(torch.empty(3))
    (one, (two,)), named = real_inputs((fake, [fake]), {"x": fake}, normal)
    assert one is two is named["x"]


def test_the_random_generators_are_left_alone(store: CostStore) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert cost(store, aten.native_dropout.default, torch.ones(99), 0.5, True).how == "measured"
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_around_us_do_not_reach_the_op(store: CostStore) -> None:
    seen: list[tuple[type, torch.dtype, bool]] = []

    def op(x: torch.Tensor) -> torch.Tensor:
        result = x @ x
        seen.append((type(result), result.dtype, torch.is_grad_enabled()))
        return result

    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(8, 8))
    with mode, torch.autocast("cpu", torch.bfloat16):
        found = measure_calls([Call("op", op, (fake,))], store)
    assert found["op"].how == "measured"
    assert set(seen) == {(torch.Tensor, torch.float32, False)}


def test_from_inside_a_compiler_backend(store: CostStore) -> None:
    costs: dict[str, Cost] = {}

    def compiler(gm: fx.GraphModule, example: Any) -> Any:
        nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
        calls = [call(n.target, *fx.map_arg(n.args, lambda i: i.meta["val"])) for n in nodes]
        costs.update(measure_calls(calls, store))
        return boxed_nop(gm, example)

    torch._dynamo.reset()
    net = torch.compile(
        nn.Linear(6, 4), backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    )
    net(torch.ones(3, 6)).sum().backward()
    assert any(s.startswith("aten.addmm.default(f32[4|1]@cpu, f32[3,6|6,1]@cpu") for s in costs)
    assert {c.how for c in costs.values()} == {"measured"}


def test_a_users_profiler_survives(store: CostStore) -> None:
    one = torch.ones(4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as session:
        one + one
        found = cost(store, lambda: (mebibytes(3).numel(), mebibytes(1)))
        one * one
    assert found.workspace == 2 * MIB
    assert {"aten::add", "aten::mul"} <= {event.name for event in session.events()}


def test_measuring_needs_the_memory_of_one_op(store: CostStore) -> None:
    with FakeTensorMode():
        bigs = [torch.empty(8 * MIB + i) for i in range(4)]
    calls = [call(aten.relu.default, big) for big in bigs]
    measure_calls([call(aten.relu.default, torch.ones(1))], store)
    flush, one_op = 48 * MIB, 2 * 4 * 8 * MIB
    peak = record(lambda: measure_calls(calls, store), CPU).peak
    assert one_op <= peak < flush + one_op + 8 * MIB


def test_the_environment_names_device_torch_and_threads() -> None:
    line = environment(CPU)
    assert line.startswith("cpu ")
    assert torch.__version__ in line
    assert f"{torch.get_num_threads()} threads" in line
