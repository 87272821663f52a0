"""Where may a verb write? Refused before the work, not after it."""

from __future__ import annotations

from pathlib import Path

from lowtide.errors import OptionError

__all__ = ["free_output"]


def free_output(output: Path, *, force: bool) -> Path:
    """`output`, if it can be written without overwriting anything unasked."""
    if output.exists() and not force:
        raise OptionError(f"{output} exists: -f overwrites it, -o OUT writes elsewhere")
    if not output.parent.is_dir():
        raise OptionError(f"there is no folder {output.parent} to write {output.name} into")
    return output
