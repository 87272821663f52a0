"""What one training step leaves behind, and whether two models' steps leave the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import default_partition
from torch.utils._pytree import tree_leaves, tree_map

import lowtide
from lowtide.errors import BudgetError
from lowtide.plan.plan import Plan
from lowtide.solve.problem import make_problem
from lowtide.solve.search import Search

QUICK: dict[str, Any] = {"seconds": 0.2, "verify": False}
"""Options of `fit` for tests in which neither the best plan nor a measured step is the point."""


KEEP_ALL = aot_autograd(
    fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=default_partition
)


@dataclass(frozen=True)
class StepResults:
    """Everything a step changes or returns, as clones."""

    output: tuple[Tensor, ...]
    loss: Tensor
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]
    generator: Tensor

    def differences(self, other: StepResults) -> list[str]:
        found = [
            f"output {i}"
            for i, (a, b) in enumerate(zip(self.output, other.output, strict=True))
            if not same(a, b)
        ]
        found += [] if same(self.loss, other.loss) else ["loss"]
        for kind, mine, theirs in (
            ("gradient", self.gradients, other.gradients),
            ("buffer", self.buffers, other.buffers),
        ):
            found += [
                f"{kind} {n}" for n in mine if n not in theirs or not same(mine[n], theirs[n])
            ]
            found += [f"{kind} {n}" for n in theirs if n not in mine]
        return found + ([] if same(self.generator, other.generator) else ["generator state"])


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Equal to the bit; NaN equals NaN."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(a, b)) or bool(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def clones(thing: Any) -> Any:
    return tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, thing)


def step_results(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[..., Tensor] | None = None,
    seed: int = 1,
    module: nn.Module | None = None,
) -> StepResults:
    """Run one step of `model` on copies of the batch. Gradients start from None."""
    module = module if module is not None else model  # type: ignore[assignment]
    assert isinstance(module, nn.Module)
    module.zero_grad(set_to_none=True)
    args, kwargs = clones(tuple(args)), clones(dict(kwargs or {}))
    torch.manual_seed(seed)
    output = model(*args, **kwargs)
    value = loss(output, *args) if loss is not None else loss_of(output)
    value.backward()
    generator = torch.get_rng_state()
    gradients = {
        n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()
    }
    module.zero_grad(set_to_none=True)
    return StepResults(
        output=tuple(clones(t) for t in tree_leaves(output) if isinstance(t, Tensor)),
        loss=value.detach().clone(),
        gradients=gradients,
        buffers={n: b.detach().clone() for n, b in module.named_buffers()},
        generator=generator,
    )


def loss_of(output: Any) -> Tensor:
    """A number that weighs every element differently, so that a wrong element shows. Draws no random numbers."""
    leaves = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
    total = leaves[0].new_zeros(())
    for t in leaves:
        weights = torch.linspace(-1, 2, t.numel(), dtype=t.dtype).reshape(t.shape)
        total = total + (t * weights).sum()
    return total


def choosing(plan: Plan, rule: str) -> Plan:
    """The plan that keeps everything and runs each op as this rule has it, where it has one: in the last of several ways."""
    search = Search(make_problem(plan.graph))
    problem, choice = search.problem, search.player.no_choice()
    for op in range(len(problem.op_names)):
        for number, way in enumerate(problem.ways[op]):
            parts = [plan.graph.op[problem.op_names[i]] for i in problem.parts[way]]
            if all(part.rule == rule for part in parts):
                choice[len(problem.storage_names) + op] = number
    answers = search.player.play(problem.gaps.start_state.copy(), choice)
    assert answers is not None
    return replace(plan, program=search.program(answers))


def differences(
    plain: nn.Module, planned: nn.Module, args: Sequence[Any], **options: Any
) -> list[str]:
    """What a step of each leaves that is not equal to the bit: against plain eager or, where PyTorch's own tracing already
    changes a bit, against the traced step with everything kept. Neither model is changed.

    Not `aot_eager`: its partitioner recomputes from buffers that forward has overwritten, and halves gradients."""
    buffers = {n: b.detach().clone() for n, b in planned.named_buffers()}
    found = step_results(planned, args, **options)
    with torch.no_grad():
        for name, buffer in planned.named_buffers():
            buffer.copy_(buffers[name])
    eager = step_results(copy.deepcopy(plain), args, **options)
    if not found.differences(eager):
        return []
    traced = copy.deepcopy(plain)
    compiled = torch.compile(traced, backend=KEEP_ALL, dynamic=False)
    reference = step_results(compiled, args, module=traced, **options)
    return found.differences(reference)


def fit_or_floor(model: nn.Module, args: Any, budget: str | int, **options: Any) -> Plan:
    """`fit`, near the smallest feasible budget where the asked one is below it."""
    chosen = {**QUICK, **options}
    for more in (1.02, 1.1, 1.3):
        try:
            return lowtide.fit(model, args, budget=budget, **chosen)
        except BudgetError as error:
            budget = (
                int(error.floor * more) + 64
            )  # searches end by the clock: the next may find less
    return lowtide.fit(model, args, budget=budget, **chosen)


def targets(plan: Plan) -> list[str]:
    """The operators that the plan runs more than once, without namespace and overload."""
    return sorted({plan.graph.op[n].target.split(".")[1] for n in plan.recomputed})
