"""rich, imported without a trace: its first import draws from Python's global random generator, which is the user's."""

from __future__ import annotations

import random

_state = random.getstate()
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TaskID, TextColumn  # noqa: E402

random.setstate(_state)

__all__ = ["BarColumn", "Console", "Progress", "TaskID", "TextColumn"]
