"""Does a script's planned module give the numbers of the script's own code? For `lowtide run --verify N`.

Before a planned call, the module is run twice on what it is about to be given, by its plan and as the script wrote it, forward and backward, with the
same random numbers. Outputs, buffers and gradients are compared, and everything is put back. The backward begins with gradients drawn at random: what the
script will make of the outputs is not known yet, and gradients of a sum would hide many faults.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from lowtide.errors import DifferenceError
from lowtide.integrations.script.trained import Call, tensors_in
from lowtide.measure.compare import worst_error
from lowtide.measure.preserve import preserved

__all__ = ["Verifier"]

_SEED = 0


class Verifier:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.compared = 0
        self.error = 0.0
        """The worst relative error of all calls: 0 for the same bits."""

    def compare(self, call: Call, *, exact: bool) -> None:
        """`exact`: any difference is a fault."""
        if self.compared >= self.wanted:
            return
        self.compared += 1
        module, args, kwargs = call.module, *_detached((call.args, call.kwargs))
        planned = _results(module, args, kwargs)
        through, module._compiled_call_impl = module._compiled_call_impl, None
        try:
            expected = _results(module, args, kwargs)
        finally:
            module._compiled_call_impl = through
        error, name = worst_error(planned, expected)
        self.error = max(self.error, error)
        if error and exact:
            raise DifferenceError(_words(module, name, error, self.compared))

    def words(self) -> str:
        """For the line at the end."""
        if not self.compared:
            return "nothing verified" if self.wanted else ""
        calls = f"{self.compared} planned call{'s' if self.compared > 1 else ''}"
        found = "the same bits" if not self.error else f"a relative error of {self.error:.0e}"
        return f"verified: {calls} gave {found}"


def _detached(given: Any) -> Any:
    """The same values, as leaves: no backward of ours is to go beyond the call."""
    return pytree.tree_map_only(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), given)


def _results(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Tensor | None]:
    with preserved(module, (args, kwargs)):
        outputs = list(tensors_in(module(*args, **kwargs)))
        leaves = {n: p for n, p in module.named_parameters() if p.requires_grad}
        given = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
        leaves |= {f"input {i}": t for i, t in enumerate(given)}
        starts = [t for t in outputs if t.requires_grad]
        torch.manual_seed(_SEED)
        pushed = [torch.randn_like(t) for t in starts]
        found = torch.autograd.grad(starts, list(leaves.values()), pushed, allow_unused=True)
        return {
            **{f"output {i}": t.detach() for i, t in enumerate(outputs)},
            **{f"the gradient of {n}": g for n, g in zip(leaves, found, strict=True)},
            **{f"the buffer {n}": b.clone() for n, b in module.named_buffers()},
        }


def _words(module: nn.Module, name: str, error: float, call: int) -> str:
    return (
        f"the planned {type(module).__name__} gave other numbers than the script's own code in call {call}: {name} differs by {error:.1e} of its norm\n"
        "     why   a fault of Lowtide's, or a module whose own results differ from run to run\n"
        "     try   LOWTIDE_FUEL=N to find the rewrite by halving, and please report it\n"
        "     more  lowtide explain F061"
    )
