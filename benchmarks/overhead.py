"""Does a plan that changes nothing cost anything? A step at budget 100% against aot_eager, run in turn.

    python benchmarks/overhead.py [--models gpt nmt] [--rounds 15]

The reference is PyTorch's own executor of ATen ops on the same graph, split as captured (`default_partition`), recurrent layers
as the same single ops. Prints the median and the quartiles of the ratio of neighbouring runs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import default_partition

import lowtide
from lowtide.bench.models import make
from lowtide.capture.rnn import lower_rnns, rnn_config


def reference_backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    lower_rnns(gm)
    compile_ = aot_autograd(fw_compiler=boxed_nop, partition_fn=default_partition)
    return compile_(gm, inputs)  # type: ignore[no-any-return]


def step_of(model: nn.Module, args: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        with rnn_config():
            model(*args).backward()

    return step


def seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def compare(name: str, rounds: int) -> float:
    model, args = make(name)
    twin = copy.deepcopy(model)
    twin.compile(backend=reference_backend, dynamic=False)
    lowtide.fit(model, args, budget="100%", verify=False)
    planned, reference = step_of(model, args), step_of(twin, args)
    for step in (planned, reference, planned, reference):
        step()
    ratios = []
    for i in range(rounds):
        first, second = (planned, reference) if i % 2 else (reference, planned)
        a, b = seconds(first), seconds(second)
        ratios.append(a / b if i % 2 else b / a)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:5s} planned / aot_eager at 100%: {middle:.3f} (quartiles {low:.3f} .. {high:.3f}, {rounds} rounds)"
    )
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=["gpt", "nmt"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for name in options.models:
        compare(name, options.rounds)


if __name__ == "__main__":
    main()
