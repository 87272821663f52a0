"""How does a module come to run its plan, and what stays as it was?

As `nn.Module.compile()` does, in place: only the module's call goes through the compiled function, so its type, parameters,
hooks and `state_dict` keys are untouched, and a pickled or deep-copied module is the plain one again. Calls without gradients
run as they always did: nothing is kept for a backward that will not come.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.external_utils import wrap_inline

from lowtide.capture.rnn import rnn_config
from lowtide.errors import LowtideError
from lowtide.execute.backend import Backend
from lowtide.execute.session import Session

__all__ = ["Planned", "attach", "detach", "session_of"]


class Planned:
    """What a fitted module is called through."""

    dynamic: bool | None = False

    def __init__(self, module: nn.Module, session: Session) -> None:
        self.session = session
        self.plain: Callable[..., Any] = module._call_impl
        # Dynamo skips frames of torch's own modules: without the wrapper nothing of an nn.Sequential would be captured, and
        # hooks of the module itself would be graphs of their own.
        self.compiled = torch.compile(
            wrap_inline(self.plain), backend=Backend(session), dynamic=self.dynamic, **_isolated()
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.plain(*args, **kwargs)
        with rnn_config(), _hook_guards():
            try:
                return self.compiled(*args, **kwargs)
            except BackendCompilerFailed as error:
                if isinstance(error.inner_exception, LowtideError):
                    # Without the compiler's frames: what went wrong is in the words.
                    raise error.inner_exception.with_traceback(None) from None
                raise


def _hook_guards() -> contextlib.AbstractContextManager[None]:
    """Dynamo does not look whether hooks came or went since it compiled; a fitted module is to notice."""
    if not hasattr(torch._dynamo.config, "skip_nnmodule_hook_guards"):
        return contextlib.nullcontext()
    return torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)


def _isolated() -> dict[str, Any]:
    """Where PyTorch can, keep each fitted module's compilations apart, so that many modules of one class do not count
    towards one recompilation limit."""
    known = inspect.signature(torch.compile).parameters
    return (
        {"isolate_recompiles": True, "recompile_limit": 64} if "isolate_recompiles" in known else {}
    )


def attach(module: nn.Module, session: Session) -> None:
    module._compiled_call_impl = Planned(module, session)


def detach(module: nn.Module, previous: Any) -> None:
    """Put back what the module was called through before."""
    module._compiled_call_impl = previous


def session_of(module: nn.Module) -> Session | None:
    planned = module._compiled_call_impl
    return planned.session if isinstance(planned, Planned) else None
