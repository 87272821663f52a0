"""When do two op calls cost the same? When their signatures are equal.

Goes in: a call as an fx graph has it, a target with arguments whose tensors may be fake. Comes out: one readable line,

    aten.convolution.default(f32[8,64,56,56|200704,3136,56,1]@cpu, f32[...]@cpu, None, [1, 1], ...)

with dtype, sizes, strides (a transposed operand is another kernel) and kind of device of each tensor, and every other argument
as written. Left out because the cost does not depend on them: values, storage offsets, the device's index. Symbolic sizes
stand at their hints, read without asking the shape environment, which would add guards to the user's graph. Nothing that
changes from run to run (addresses, node names) may enter: the line is the key of a store on disk. Kernels of ours carry the
version of their source: a faster one is measured anew.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import lowtide.kernels

__all__ = ["concrete", "dtype_name", "signature"]

_OURS = "lowtide.kernels"
_SHORT = {
    "float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u", "bool": "b8",
}  # fmt: skip


def signature(
    target: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> str:
    words = [_word(a) for a in args]
    words += [f"{name}={_word(value)}" for name, value in sorted((kwargs or {}).items())]
    return f"{_name(target)}({', '.join(words)})"


def concrete(value: Any) -> Any:
    """A symbolic number as its hint, without a guard; anything else as it is."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    hint = value.node.hint if value.node.has_hint() else None
    if hint is None:
        raise ValueError(f"{value} has no hint: its size is known only when it runs")
    return hint


def _name(target: Any) -> str:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        name = str(target)
        return f"{name} of {_kernels()}" if name.startswith("lowtide.") else name
    if isinstance(target, functools.partial):
        return signature(target.func, target.args, target.keywords)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    kind = type(target)
    whole = (
        f"{target.__module__}.{name}" if name else f"{kind.__module__}.{kind.__qualname__} object"
    )
    return f"{whole} of {_kernels()}" if whole.startswith(f"{_OURS}.") else whole


@functools.cache
def _kernels() -> str:
    """A name for the source of all our kernels: they call each other."""
    source = hashlib.sha256()
    for path in sorted(Path(lowtide.kernels.__path__[0]).glob("*.py")):
        source.update(path.read_bytes())
    return source.hexdigest()[:8]


def _word(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_word(v) for v in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_word(k)}: {_word(v)}' for k, v in value.items())}}}"
    if isinstance(value, slice):
        return f"slice({_word(value.start)}, {_word(value.stop)}, {_word(value.step)})"
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(value)
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    return _thing(value)


def _number(value: Any) -> str:
    """Without a hint the symbol stands for itself: equal within one graph, and never found on disk by mistake."""
    try:
        return repr(concrete(value))
    except ValueError:
        return str(value)


def _tensor(value: torch.Tensor) -> str:
    sizes = ",".join(_number(s) for s in value.shape)
    kind = value.device.type
    if value.layout is not torch.strided:
        return (
            f"{dtype_name(value.dtype)}[{sizes}|{str(value.layout).removeprefix('torch.')}]@{kind}"
        )
    return (
        f"{dtype_name(value.dtype)}[{sizes}|{','.join(_number(s) for s in value.stride())}]@{kind}"
    )


def dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return _SHORT[letters] + name[len(letters) :] if letters in _SHORT else name


def _thing(value: Any) -> str:
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.fx.GraphModule):
        return f"graph {hashlib.sha256(value.code.encode()).hexdigest()[:16]}"
    if callable(value) and not isinstance(value, torch.nn.Module):
        return _name(value)
    return type(value).__qualname__
