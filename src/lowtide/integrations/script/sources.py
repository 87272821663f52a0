"""What does a script's own source say that is better known before its first step?"""

from __future__ import annotations

import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

__all__ = ["differentiates_twice"]


def differentiates_twice() -> bool:
    """Does any module loaded from outside of Python's own folders speak of `create_graph`?"""
    return any("create_graph" in text for text in _own_sources())


def _own_sources() -> list[str]:
    paths = sysconfig.get_paths()
    others = tuple(paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = str(Path(__file__).parents[2])
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith((*others, ours)):
            with suppress(OSError, UnicodeDecodeError):
                found.append(Path(file).read_text(encoding="utf-8"))
    return found
