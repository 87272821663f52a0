"""What would this op cost on that device, when it cannot be run there? A roofline estimate from shapes alone.

Goes in: an op's name, the dtypes and shapes of its tensors, and a `Device`. Comes out: a `Cost` with `how="estimated"`: the
longer of the time to do its arithmetic and the time to move its bytes, plus the time to start it.

Arithmetic is counted for the families that are bound by it (matrix products, convolutions, attention); all else is bound
by bytes: every input read once, every output written once. Sheets are the vendors' peaks, of which large ops reach
about `REACHED`; small and badly shaped ops reach less. Expect a factor of two either way: enough to rank plans for a device that
is not here, not enough to promise a time. Workspaces follow what was measured for PyTorch's CPU kernels, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lowtide.cost.store import Cost
from lowtide.errors import OptionError

__all__ = ["DEVICES", "Device", "Spec", "estimate", "sheet_for", "sheet_named"]

REACHED = 0.6
"""Share of a vendor's peak, in arithmetic and in bandwidth, that large ops reach."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Dtype (`f32`, `bf16`, `i64`: as in signatures) and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        bits = int("".join(filter(str.isdigit, self.dtype.split("_")[0])) or 32)
        return self.count * max(1, bits // 8)


@dataclass(frozen=True, slots=True)
class Device:
    """A device's data sheet."""

    name: str
    flops_per_second: Mapping[str, float]
    """Peak by dtype, matrix units included where torch uses them by default."""
    bytes_per_second: float
    launch_seconds: float

    def flops(self, dtype: str) -> float:
        return self.flops_per_second.get(dtype, self.flops_per_second["f32"])


DEVICES = (
    Device("A100", {"f32": 19.5e12, "f64": 9.7e12, "f16": 312e12, "bf16": 312e12}, 1.56e12, 5e-6),
    Device("H100", {"f32": 67e12, "f64": 34e12, "f16": 989e12, "bf16": 989e12}, 3.35e12, 5e-6),
    Device("RTX 4090", {"f32": 83e12, "f64": 1.3e12, "f16": 165e12, "bf16": 165e12}, 1.01e12, 5e-6),
    Device("T4", {"f32": 8.1e12, "f64": 0.25e12, "f16": 65e12}, 0.32e12, 5e-6),
    Device("P100", {"f32": 9.3e12, "f64": 4.7e12, "f16": 18.7e12}, 0.73e12, 5e-6),
    Device("cpu", {"f32": 150e9, "f64": 75e9, "f16": 30e9, "bf16": 30e9}, 25e9, 5e-6),
)
"""`cpu` is two cores of a server with AVX2, the machine Lowtide is tested on."""


def sheet_named(name: str) -> Device:
    """By its own name, whatever the case."""
    names = {device.name.lower(): device for device in DEVICES}
    if name.lower() not in names:
        known = ", ".join(device.name for device in DEVICES)
        raise OptionError(f"there is no data sheet of {name!r}. Known: {known}")
    return names[name.lower()]


def sheet_for(device_name: str) -> Device:
    """The sheet whose name is in `device_name` ("NVIDIA A100-SXM4-80GB"); for an unknown GPU the T4's, else the CPU's."""
    words = device_name.lower()
    named = {device.name.lower(): device for device in DEVICES}
    found = [device for name, device in named.items() if name in words]
    return found[0] if found else named["t4" if "cuda" in words or "nvidia" in words else "cpu"]


def estimate(
    target: str,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    device: Device,
    flops: float | None = None,
) -> Cost:
    """`target` as in `Op.target`, `aten.mm.default`. `flops` where the caller knows better."""
    family = _family(target)
    work = _flops(family, inputs, outputs) if flops is None else flops
    moved = sum(spec.bytes for spec in (*inputs, *outputs))
    rate = device.flops(inputs[0].dtype if inputs else "f32")
    busy = max(work / rate, moved / device.bytes_per_second) / REACHED
    workspace = _WORKSPACE.get(family, 0.0) * sum(spec.bytes for spec in outputs)
    return Cost(device.launch_seconds + busy, int(workspace), "estimated")


def _family(target: str) -> str:
    name = target.removeprefix("torch.ops.").split("::")[-1].removeprefix("aten.").split(".")[0]
    if "scaled_dot_product" in name:
        return "attention_backward" if "backward" in name else "attention"
    if "batch_norm" in name and "backward" in name:
        return "batch_norm_backward"
    return name


# Of the outputs' bytes. A convolution in NCHW reorders its operands, each into a copy.
_WORKSPACE = {"convolution": 1.5, "convolution_backward": 2.5, "batch_norm_backward": 1.0}


def _flops(family: str, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    count = _FLOPS.get(family)
    try:
        return count(inputs, outputs) if count else 0.0
    except IndexError:  # shapes unlike the family's: an op of the same name that we do not know
        return 0.0


def _product(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """[..., m, k] times [..., k, n]. Of addmm and baddbmm the last two inputs."""
    left, right = inputs[-2], inputs[-1]
    return 2.0 * left.count * right.shape[-1]


def _convolution(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """Every output element takes one filter; of a transposed convolution every input element."""
    data, weight, made = inputs[0], inputs[1], outputs[0]
    transposed = made.shape[1] != weight.shape[0]
    return 2.0 * (data if transposed else made).count * prod(weight.shape[1:])


def _convolution_backward(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """The forward's arithmetic for the input's gradient, and again for the weight's."""
    gradient, data, weight = inputs[0], inputs[1], inputs[2]
    asked = [o for o in outputs if len(o.shape) > 1]
    return len(asked) * _convolution((data, weight), (gradient,))


def _attention(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """Scores, then their product with the values: [b, h, t, d] with [b, h, s, d]. A causal mask is not known here."""
    query, key = inputs[0], inputs[1]
    return 4.0 * query.count * key.shape[-2]


def _attention_backward(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """Five products where the forward has two."""
    return 2.5 * _attention(inputs[1:], outputs)


_FLOPS: Mapping[str, Callable[[Sequence[Spec], Sequence[Spec]], float]] = {
    "mm": _product,
    "addmm": _product,
    "bmm": _product,
    "baddbmm": _product,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "attention": _attention,
    "attention_backward": _attention_backward,
}
