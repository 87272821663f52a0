"""On what does the cost of an op depend, besides the op? The environment half of a measurement's key.

Goes in: the names of the device, of torch and of whatever else changes which kernels run. Comes out: one readable line,

    cpu AMD EPYC 7763 | torch 2.13.0+cpu | 2 threads | avx2 | method 2

Two runs share measurements exactly when their lines are equal. It takes strings, so that it can be built from a saved file on
a machine without torch; `measure/timing.py` asks torch for them.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["METHOD", "environment_key"]

METHOD = 2
"""Raised whenever op costs are measured in another way: what an older Lowtide measured is then measured again."""


def environment_key(
    device_name: str, torch_version: str, threads: int, flags: Iterable[str] = ()
) -> str:
    """`flags`: anything else that changes kernels (vector instructions, TF32, cuDNN's search), in any order."""
    parts = [device_name, f"torch {torch_version}", f"{threads} threads"]
    parts += [*sorted(set(flags)), f"method {METHOD}"]
    return " | ".join(" ".join(part.replace("|", "/").split()) for part in parts)
