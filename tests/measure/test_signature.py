from __future__ import annotations

import functools
import operator
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lowtide.measure.signature import concrete, signature

aten = torch.ops.aten


def symbolic(*shape: int) -> tuple[torch.Tensor, ShapeEnv]:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    return mode.from_tensor(torch.empty(*shape), static_shapes=False), env


def test_the_whole_line() -> None:
    image, weight = torch.empty(8, 64, 56, 56), torch.empty(32, 64, 3, 3, dtype=torch.bfloat16)
    args = (image, weight, None, [1, 1], [0, 0], (1, 1), False, [0, 0], 1)
    assert signature(aten.convolution.default, args) == (
        "aten.convolution.default(f32[8,64,56,56|200704,3136,56,1]@cpu, bf16[32,64,3,3|576,9,3,1]@cpu, "
        "None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"
    )


def test_real_and_fake_tensors_have_one_signature() -> None:
    real = torch.empty(3, 4)
    fake = FakeTensorMode().from_tensor(real)
    assert signature(aten.relu.default, (real,)) == signature(aten.relu.default, (fake,))


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(4, 3).t(),
        torch.empty(3, 1).expand(3, 4),
        torch.empty(3, 8)[:, ::2],
        torch.empty(3, 4, dtype=torch.float64),
        torch.empty(4, 3),
        torch.empty(3, 4, device="meta"),
    ],
    ids=["transposed", "expanded", "strided", "dtype", "shape", "device"],
)
def test_what_changes_the_cost_changes_the_signature(other: torch.Tensor) -> None:
    one = torch.empty(3, 4)
    assert signature(aten.relu.default, (one,)) != signature(aten.relu.default, (other,))


def test_what_does_not_change_the_cost_does_not_change_the_signature() -> None:
    whole = torch.randn(10, 4)
    assert signature(aten.relu.default, (whole[:3],)) == signature(aten.relu.default, (whole[2:5],))


def test_a_memory_format_shows_in_the_strides() -> None:
    image = torch.empty(2, 3, 4, 4)
    last = image.to(memory_format=torch.channels_last)
    assert signature(aten.relu.default, (image,)) != signature(aten.relu.default, (last,))


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        (float("inf"), "inf"),
        ("mean", "'mean'"),
        (torch.float16, "float16"),
        (torch.channels_last, "channels_last"),
        (torch.strided, "strided"),
        (torch.device("cuda:1"), "cuda"),
        ([None, [1, (2, 3)]], "[None, [1, [2, 3]]]"),
        (slice(None, 3), "slice(None, 3, None)"),
        (torch.empty(2, dtype=torch.bool), "b8[2|1]@cpu"),
        (torch.empty((), dtype=torch.int64), "i64[|]@cpu"),
        (torch.empty(2, dtype=torch.uint8), "u8[2|1]@cpu"),
        (torch.empty(2, dtype=torch.complex64), "c64[2|1]@cpu"),
        (torch.Generator(), "Generator"),
    ],
)
def test_words(value: Any, word: str) -> None:
    assert signature(operator.getitem, (value,)) == f"_operator.getitem({word})"


def test_keywords_come_in_one_order() -> None:
    one = signature(aten.sum.dim_IntList, (), {"b": 1, "a": [2]})
    assert one == signature(aten.sum.dim_IntList, (), {"a": [2], "b": 1})
    assert one == "aten.sum.dim_IntList(a=[2], b=1)"


def test_symbolic_sizes_stand_at_their_hints_without_guards() -> None:
    tensor, env = symbolic(6, 10)
    size = tensor.shape[0]
    assert not isinstance(size, int)
    line = signature(aten.expand.default, (tensor, [size, 2 * size]))
    assert line == "aten.expand.default(f32[6,10|10,1]@cpu, [6, 12])"
    assert concrete(size * 3) == 18
    assert not env.guards


def test_a_size_that_is_not_known_stands_for_itself() -> None:
    unknown = ShapeEnv().create_unbacked_symint()
    assert "u0" in signature(aten.relu.default, (unknown,))
    with pytest.raises(ValueError, match="hint"):
        concrete(unknown)


def test_functions_and_graphs() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    assert signature(functools.partial(double, 2)).endswith("double(2)()")
    graph = torch.fx.symbolic_trace(double)
    assert signature(double, (graph,)) == signature(double, (torch.fx.symbolic_trace(double),))
    assert signature(double, (graph,)) != signature(
        double, (torch.fx.symbolic_trace(lambda x: x * 3),)
    )


def test_it_is_the_same_in_every_process() -> None:
    line = "signature(torch.add, (torch.empty(2), object(), torch.Generator()), {'x': {1: max}})"
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1])\n"
        f"from lowtide.measure.signature import signature\nprint({line})"
    )
    path = next(p for p in sys.path if p.endswith("src"))
    command = [sys.executable, "-c", code, path]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    here = signature(torch.add, (torch.empty(2), object(), torch.Generator()), {"x": {1: max}})
    assert there == here
    assert "0x" not in here
