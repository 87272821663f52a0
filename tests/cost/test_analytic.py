from __future__ import annotations

import pytest

from lowtide.cost.analytic import REACHED, Device, Spec, estimate, sheet_for

DEVICE = Device("toy", {"f32": 1e9, "bf16": 4e9}, 1e6 * 1e9, 0.0)
"""Moves bytes in no time, so that seconds are arithmetic alone."""


def flops(target: str, inputs: list[Spec], outputs: list[Spec]) -> float:
    return estimate(target, inputs, outputs, DEVICE).seconds * REACHED * 1e9


def f32(*shape: int) -> Spec:
    return Spec("f32", shape)


def test_bytes_of_a_spec() -> None:
    assert [Spec(d, (10,)).bytes for d in ("f32", "bf16", "i64", "b8", "float8_e4m3fn", "f64")] == [
        40, 20, 80, 10, 10, 80,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "inputs", "outputs", "expected"),
    [
        ("aten.mm.default", [f32(2, 3), f32(3, 5)], [f32(2, 5)], 60),
        ("aten.addmm.default", [f32(5), f32(2, 3), f32(3, 5)], [f32(2, 5)], 60),
        ("aten.bmm.default", [f32(7, 2, 3), f32(7, 3, 5)], [f32(7, 2, 5)], 420),
        (
            "aten.convolution.default",
            [f32(1, 4, 8, 8), f32(6, 4, 3, 3)],
            [f32(1, 6, 8, 8)],
            2 * 6 * 64 * 36,
        ),
        (  # in groups
            "aten.convolution.default",
            [f32(1, 4, 8, 8), f32(4, 1, 3, 3)],
            [f32(1, 4, 8, 8)],
            2 * 4 * 64 * 9,
        ),
        (  # transposed
            "aten.convolution.default",
            [f32(1, 4, 8, 8), f32(4, 6, 2, 2)],
            [f32(1, 6, 16, 16)],
            2 * 4 * 64 * 24,
        ),
        (  # gradients of input and weight
            "aten.convolution_backward.default",
            [f32(1, 6, 8, 8), f32(1, 4, 8, 8), f32(6, 4, 3, 3)],
            [f32(1, 4, 8, 8), f32(6, 4, 3, 3), f32(6)],
            2 * 2 * 6 * 64 * 36,
        ),
        (
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            [f32(1, 2, 16, 8)] * 3,
            [f32(1, 2, 16, 8)],
            4 * 2 * 16 * 16 * 8,
        ),
        ("aten.relu.default", [f32(10)], [f32(10)], 0),
        ("aten.mm.default", [], [], 0),
    ],
)
def test_arithmetic(target: str, inputs: list[Spec], outputs: list[Spec], expected: float) -> None:
    assert flops(target, inputs, outputs) == pytest.approx(expected, abs=0.1)


def test_element_wise_ops_are_bound_by_bytes() -> None:
    a100 = sheet_for("cuda NVIDIA A100-SXM4-80GB")
    cost = estimate("aten.add.Tensor", [f32(10**8)] * 2, [f32(10**8)], a100)
    assert cost.how == "estimated"
    assert cost.seconds == pytest.approx(1.2e9 / 1.56e12 / REACHED, rel=0.01)


def test_a_known_count_and_a_lower_precision_are_used() -> None:
    assert estimate("x", [Spec("bf16", (1,))], [], DEVICE, flops=4e9).seconds * REACHED == (
        pytest.approx(1.0)
    )


def test_an_unknown_device_gets_the_nearest_sheet() -> None:
    assert sheet_for("cuda NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert sheet_for("cuda NVIDIA Something New").name == "T4"
    assert sheet_for("cpu AMD EPYC").name == "cpu"
