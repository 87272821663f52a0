"""What people do with a model they train keeps working, to the bit, once it is fitted."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import lowtide
from lowtide.execute.attach import session_of
from lowtide.plan.plan import Plan
from tests.training import QUICK, differences, fit_or_floor, loss_of, same, step_results

pytestmark = pytest.mark.usefixtures("estimated")


class Net(nn.Module):
    """Convolutions, batch norms, dropout and a head: enough for a plan to drop something."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(2)
        )
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.drop(x).mean((2, 3)))


class Perceptron(nn.Module):
    def __init__(self, *, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x)).tanh() * scale
        return x


def images(count: int = 4) -> tuple[Tensor]:
    return (torch.randn(count, 3, 8, 8),)


def vectors(count: int = 48, width: int = 32) -> tuple[Tensor]:
    return (torch.randn(count, width),)


def pair(
    make: Callable[[], nn.Module], args: Any, budget: str = "80%", **options: Any
) -> tuple[nn.Module, nn.Module, Plan]:
    """The plain model, a fitted copy, and its plan, which drops something."""
    torch.manual_seed(0)
    plain = make()
    fitted = copy.deepcopy(plain)
    plan = fit_or_floor(fitted, args, budget, **options)
    assert plan.peak < plan.unplanned_peak
    return plain, fitted, plan


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def all_same(mine: list[Any], theirs: list[Any]) -> bool:
    return len(mine) == len(theirs) and all(same(a, b) for a, b in zip(mine, theirs, strict=True))


def on_both(plain: nn.Module, fitted: nn.Module, use: Callable[[nn.Module], list[Any]]) -> None:
    results = []
    for model in (plain, fitted):
        torch.manual_seed(5)
        results.append(use(model))
    assert all_same(*results)


# Ways to call backward.


def test_backward_twice_with_retain_graph():
    def use(model: nn.Module) -> list[Any]:
        loss = loss_of(model(*args))
        loss.backward(retain_graph=True)
        first = gradients(model)
        model.zero_grad()
        loss.backward()
        assert all_same(first, gradients(model))
        return first

    args = images()
    plain, fitted, _ = pair(Net, args)
    on_both(plain, fitted, use)


def test_gradients_accumulate():
    def use(model: nn.Module) -> list[Any]:
        for batch in batches:
            loss_of(model(batch)).backward()
        return [*gradients(model), *model.buffers()]

    batches = [images()[0] for _ in range(3)]
    plain, fitted, _ = pair(Net, batches[:1])
    on_both(plain, fitted, use)


def test_two_forwards_before_a_backward():
    def use(model: nn.Module) -> list[Any]:
        first, second = (loss_of(model(b)) for b in batches)
        second.backward()
        between = gradients(model)
        first.backward()
        return [*between, *gradients(model), *model.buffers()]

    batches = [images()[0] for _ in range(2)]
    plain, fitted, _ = pair(Net, batches[:1])
    on_both(plain, fitted, use)


def test_gradients_of_some_parameters_only():
    def use(model: nn.Module) -> list[Any]:
        return list(
            torch.autograd.grad(loss_of(model(*args)), [model.head.weight, model.stem.bias])
        )

    args = images()
    plain, fitted, _ = pair(Net, args)
    on_both(plain, fitted, use)


def test_gradients_of_the_input():
    def use(model: nn.Module) -> list[Any]:
        x = args[0].detach().clone().requires_grad_()
        loss_of(model(x)).backward()
        return [x.grad, *gradients(model)]

    args = (torch.randn(4, 3, 8, 8, requires_grad=True),)
    plain, fitted, _ = pair(Net, args)
    on_both(plain, fitted, use)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_five_steps_with_an_optimizer(make: Callable[..., torch.optim.Optimizer]):
    def use(model: nn.Module) -> list[Any]:
        optimizer = make(model.parameters(), lr=0.05)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = loss_of(model(batch))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters()), *model.buffers()]

    batches = [images()[0] for _ in range(5)]
    plain, fitted, _ = pair(Net, batches[:1])
    on_both(plain, fitted, use)


# Between steps.


def test_evaluation_between_steps():
    def use(model: nn.Module) -> list[Any]:
        found = []
        for _ in range(2):
            loss_of(model(*args)).backward()
            model.eval()
            with torch.no_grad():
                found.append(model(*args))
            found.append(model(*args).detach())
            model.train()
            with torch.no_grad():
                found.append(model(*args))
            with torch.inference_mode():
                found.append(model(*args).clone())
        return [*found, *gradients(model), *model.buffers()]

    args = images()
    plain, fitted, _ = pair(Net, args)
    on_both(plain, fitted, use)


def test_the_generator_ends_where_it_would_have():
    args = images()
    plain, fitted, _ = pair(Net, args)
    assert same(step_results(plain, args).generator, step_results(fitted, args).generator)


def test_another_shape_gets_its_own_plan():
    plain, fitted, _ = pair(Net, images(6))
    for count in (2, 4, 6):
        assert differences(plain, fitted, images(count)) == []


def test_changing_a_parameter_in_place_shows():
    args = images()
    plain, fitted, _ = pair(Net, args)
    for model in (plain, fitted):
        with torch.no_grad():
            model.head.weight.mul_(2)
    assert differences(plain, fitted, args) == []


def test_freezing_a_layer_later():
    args = images()
    plain, fitted, _ = pair(Net, args)
    for model in (plain, fitted):
        model.stem.requires_grad_(False)
    assert differences(plain, fitted, args) == []


# Hooks.


def test_hooks_run():
    def use(model: nn.Module) -> list[Any]:
        seen: list[Any] = []
        handles = [
            model.register_forward_pre_hook(lambda m, given: (given[0] * 1.5,)),
            model.register_forward_hook(lambda m, given, made: made * 0.5),
            model.blocks[0].register_forward_hook(lambda m, given, made: made + 1),
            model.head.weight.register_hook(lambda g: g * 2),
            model.stem.weight.register_post_accumulate_grad_hook(
                lambda p: seen.append(p.grad.clone())
            ),
        ]
        loss_of(model(*args)).backward()
        found = [*seen, *gradients(model)]
        for handle in handles:
            handle.remove()
        model.zero_grad()
        loss_of(model(*args)).backward()
        assert len(seen) == 1
        return [*found, *gradients(model)]

    args = images()
    plain, fitted, _ = pair(Net, args)
    on_both(plain, fitted, use)


def test_hooks_that_were_there_before_fit():
    def make() -> nn.Module:
        model = Net()
        model.register_forward_hook(lambda m, given, made: made * 0.5)
        model.blocks[1].register_forward_pre_hook(lambda m, given: (given[0] + 1,))
        model.head.register_full_backward_hook(lambda m, given, made: (given[0] * 3,))
        return model

    args = images()
    plain, fitted, _ = pair(make, args)
    assert differences(plain, fitted, args) == []


# The module as an object.


def test_the_module_keeps_its_type_names_and_state():
    args = images()
    plain, fitted, _ = pair(Net, args)
    assert type(fitted) is Net
    assert list(fitted.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in fitted.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert repr(fitted) == repr(plain)
    other = Net()
    fitted.load_state_dict(other.state_dict())
    assert differences(other, fitted, args) == []


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies_are_plain_modules(way: str):
    args = images()
    plain, fitted, _ = pair(Net, args)
    if way == "deepcopy":
        other = copy.deepcopy(fitted)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(fitted))
    else:
        file = io.BytesIO()
        torch.save(fitted, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert session_of(other) is None
    assert session_of(fitted) is not None
    assert differences(plain, other, args) == []
    assert differences(plain, fitted, args) == []


def test_many_fitted_modules_of_one_class():
    """More than Dynamo's limit of compilations of one function (8)."""
    args = vectors(16)
    for number in range(10):
        torch.manual_seed(number)
        plain = Perceptron(depth=2)
        fitted = copy.deepcopy(plain)
        fit_or_floor(fitted, args, "80%", seconds=0.05)
        session = session_of(fitted)
        assert session is not None
        count = len(session.plans)
        assert differences(plain, fitted, args) == []
        assert len(session.plans) == count, (
            "captured once more: the fitted call fell out of the cache"
        )


def test_a_fitted_module_inside_another():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = Perceptron(), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x))

    args = vectors()
    plain = Outer()
    fitted = copy.deepcopy(plain)
    fit_or_floor(fitted.inner, args, "80%")
    assert differences(plain, fitted, args) == []


def test_fitting_again_with_another_budget():
    args = images()
    plain, fitted, first = pair(Net, args, "95%")
    second = fit_or_floor(fitted, args, "70%")
    assert second.budget < first.budget
    assert differences(plain, fitted, args) == []


# What is called with what.


@dataclass
class Answer:
    loss: Tensor
    scores: Tensor


@pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass", "nested"])
def test_outputs_of_any_shape(kind: str):
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Any:
            scores = super().forward(x)
            loss = scores.square().mean()
            if kind == "tuple":
                return loss, scores
            if kind == "dict":
                return {"loss": loss, "scores": scores, "count": 3}
            if kind == "dataclass":
                return Answer(loss, scores)
            return [loss, {"more": (scores, scores.detach().argmax(1))}, None]

    def loss_in(output: Any, *_: Any) -> Tensor:
        if isinstance(output, dict):
            return output["loss"]
        return output.loss if isinstance(output, Answer) else output[0]

    args = vectors()
    plain, fitted, _ = pair(Model, args)
    assert differences(plain, fitted, args, loss=loss_in) == []


def test_keyword_arguments():
    class Model(Perceptron):
        def forward(self, x: Tensor, *, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
            x = super().forward(x, scale)
            return x if mask is None else x * mask

    args, kwargs = vectors(), {"mask": torch.rand(48, 1), "scale": 0.5}
    plain = Model()
    fitted = copy.deepcopy(plain)
    plan = lowtide.fit(fitted, args, kwargs, budget="80%", **QUICK)
    assert plan.recomputed
    assert differences(plain, fitted, args, kwargs=kwargs) == []
    assert differences(plain, fitted, args) == []


def test_scalar_arguments():
    class Model(Perceptron):
        def forward(self, x: Tensor, times: int, scale: float, *, flag: bool = False) -> Tensor:
            for _ in range(times):
                x = super().forward(x, scale)
            return x if flag else -x

    args = (*vectors(), 2, 0.5)
    plain, fitted, _ = pair(Model, args)
    assert differences(plain, fitted, args) == []
    assert differences(plain, fitted, (*vectors(), 1, 0.25)) == []
    assert differences(plain, fitted, args, kwargs={"flag": True}) == []


def test_a_loss_of_ones_own():
    def loss(output: Tensor, x: Tensor) -> Tensor:
        return F.mse_loss(output, x)

    args = vectors()
    plain = Perceptron()
    fitted = copy.deepcopy(plain)
    lowtide.fit(fitted, args, budget="80%", loss=loss, **QUICK)
    assert differences(plain, fitted, args, loss=loss) == []


def test_a_single_tensor_needs_no_tuple():
    plain = Perceptron()
    fitted = copy.deepcopy(plain)
    (x,) = vectors()
    lowtide.fit(fitted, x, budget="80%", **QUICK)
    assert differences(plain, fitted, (x,)) == []


def test_inputs_mutated_in_place():
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x.clone())
            x.mul_(0.5)
            return y + x

    args = vectors()
    plain, fitted, _ = pair(Model, args)
    given = [args[0].clone(), args[0].clone()]
    for model, x in zip((plain, fitted), given, strict=True):
        loss_of(model(x)).backward()
    assert torch.equal(*given)
    assert all_same(gradients(plain), gradients(fitted))


def test_weight_tying():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body = nn.Embedding(40, 32), Perceptron()
            self.head = nn.Linear(32, 40, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return F.cross_entropy(self.head(self.body(self.embedding(x))), x)

    args = (torch.randint(40, (48,)),)
    plain, fitted, _ = pair(Tied, args)
    assert fitted.head.weight is fitted.embedding.weight
    assert differences(plain, fitted, args) == []


def test_frozen_layers_have_no_gradients():
    def make() -> nn.Module:
        model = Perceptron()
        model.layers[0].requires_grad_(False)
        model.layers[1].bias.requires_grad_(False)
        return model

    args = vectors()
    plain, fitted, _ = pair(make, args)
    assert differences(plain, fitted, args) == []
    assert fitted.layers[0].weight.grad is None


def test_a_bare_layer_and_a_sequential():
    """Classes of torch's own, which Dynamo would skip."""
    args = vectors(64)
    for plain in (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), nn.Linear(32, 8)):
        fitted = copy.deepcopy(plain)
        assert fit_or_floor(fitted, args, "100%").graph.ops
        assert differences(plain, fitted, args) == []


# Modes and marks.


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool):
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16) if inside else nullcontext():
                return super().forward(x).float()

    def use(model: nn.Module) -> list[Any]:
        with nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(*args))
        loss.backward()
        return [loss.detach(), *gradients(model)]

    args = vectors()
    plain = Model()
    fitted = copy.deepcopy(plain)
    with nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
        plan = fit_or_floor(fitted, args, "80%")
    assert any("bf16" in v.spec for v in plan.graph.values)
    on_both(plain, fitted, use)


def test_low_precision_parameters():
    args = (torch.randn(48, 32, dtype=torch.bfloat16),)
    plain, fitted, _ = pair(lambda: Perceptron().bfloat16(), args)
    assert differences(plain, fitted, args) == []


def test_a_checkpointed_region_of_the_users():
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(super().forward, x, use_reentrant=False)
            return x.sin()

    args = vectors()
    plain = Model()
    fitted = copy.deepcopy(plain)
    fit_or_floor(fitted, args, "80%")
    assert differences(plain, fitted, args) == []


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE])
def test_selective_checkpoint_marks(policy: CheckpointPolicy):
    """Matrix products are marked one way, everything else the other."""
    other = {
        CheckpointPolicy.MUST_SAVE: CheckpointPolicy.PREFER_RECOMPUTE,
        CheckpointPolicy.MUST_RECOMPUTE: CheckpointPolicy.PREFER_SAVE,
    }[policy]

    def mark(_context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        return policy if op == torch.ops.aten.addmm.default else other

    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            contexts = partial(create_selective_checkpoint_contexts, mark)
            return checkpoint(super().forward, x, use_reentrant=False, context_fn=contexts).sin()

    args = vectors()
    plain = Model()
    fitted = copy.deepcopy(plain)
    saved = policy is CheckpointPolicy.MUST_SAVE
    plan = fit_or_floor(fitted, args, "90%" if saved else "150%")
    products = {o.name for o in plan.graph.ops if o.target == "aten.addmm.default"}
    made = {plan.graph.storage(v) for n in products for v in plan.graph.op[n].outputs}
    inner = made - {plan.graph.storage(r.value) for r in plan.graph.required}
    assert products
    if saved:
        assert not products & set(plan.recomputed)
    else:
        assert not inner & set(plan.kept)
    assert differences(plain, fitted, args) == []


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * x * 2.5  # not the derivative: it must be ours that runs


def test_custom_autograd_functions():
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            return Cube.apply(super().forward(Cube.apply(x)))

    args = vectors()
    plain, fitted, _ = pair(Model, args)
    assert differences(plain, fitted, args) == []


def test_a_graph_break_inside():
    class Model(Perceptron):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return super().forward(x)

    args = vectors()
    plain = Model()
    fitted = copy.deepcopy(plain)
    fit_or_floor(fitted, args, "90%")
    assert differences(plain, fitted, args) == []


# When things go wrong in the user's own code.


class Wrong(Exception):
    pass


def test_exceptions_in_forward_pass_through():
    class Model(Perceptron):
        def forward(self, x: Tensor, *, fail: bool = False) -> Tensor:
            x = super().forward(x)
            if fail:
                raise Wrong("mine")
            return x

    args = vectors()
    plain, fitted, _ = pair(Model, args)
    with pytest.raises(Wrong, match=r"^mine$"):
        fitted(*args, fail=True)
    assert differences(plain, fitted, args) == []
    other = Model()
    with pytest.raises(Wrong, match=r"^mine$"):
        lowtide.fit(other, args, {"fail": True}, budget="80%", **QUICK)


def test_a_wrong_shape_is_the_same_error():
    args = vectors()
    _, fitted, _ = pair(Perceptron, args)
    with pytest.raises(RuntimeError, match=r"shape|reduction dim"):
        fitted(torch.randn(4, 7))


# torch.compile(backend="lowtide").


def test_dynamic_shapes_through_torch_compile():
    pytest.importorskip("lowtide.integrations.dynamo")
    plain = Perceptron()
    traced = copy.deepcopy(plain)
    compiled = torch.compile(
        traced, backend="lowtide", dynamic=True, options={"budget": "80%", "seconds": 0.3}
    )
    for count in (48, 32, 64):
        args = vectors(count)
        found = step_results(compiled, args, module=traced)
        assert found.differences(step_results(plain, args)) == []
