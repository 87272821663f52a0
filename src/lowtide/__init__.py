"""Fits PyTorch training into a byte budget, at the least cost in time, with the same bits.

    plan = lowtide.fit(model, (images, labels), budget="6GiB")

The public names, all of them (and `Profile`, the type that `profile` returns). Each is loaded when it is first asked for, so that `import lowtide` (and with it the command's help)
does not pay for importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowtide import nn
    from lowtide.api import apply, fit, frontier, largest_batch, load, measure_peak, plan, profile
    from lowtide.errors import BudgetError, LowtideError
    from lowtide.plan.plan import Plan
    from lowtide.plan.profile import Profile as Profile

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "LowtideError",
    "Plan",
    "apply",
    "fit",
    "frontier",
    "largest_batch",
    "load",
    "measure_peak",
    "nn",
    "plan",
    "profile",
]

_HOME = {
    "BudgetError": "lowtide.errors",
    "LowtideError": "lowtide.errors",
    "Plan": "lowtide.plan.plan",
    "Profile": "lowtide.plan.profile",
    "apply": "lowtide.api",
    "fit": "lowtide.api",
    "frontier": "lowtide.api",
    "largest_batch": "lowtide.api",
    "load": "lowtide.api",
    "measure_peak": "lowtide.api",
    "plan": "lowtide.api",
    "profile": "lowtide.api",
}

# `lowtide.plan` is a function to the user and a package inside. Python binds a package to its parent's namespace when it is first
# imported, which would hide the function: so import it now and take the binding away.
import_module("lowtide.plan")
del globals()["plan"]


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module("lowtide.nn")
    if name not in _HOME:
        raise AttributeError(f"module 'lowtide' has no attribute {name!r}", name=name, obj=None)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
