"""What does the environment say? The few variables Lowtide reads, read here and nowhere else.

    LOWTIDE_CACHE_DIR   where measurements are kept; else $XDG_CACHE_HOME/lowtide, else ~/.cache/lowtide
    LOWTIDE_FUEL        apply only the first n rewrites, to find a wrong one by halving

`NO_COLOR` is honoured too, by rich, which draws everything. `settings()` reads the variables at the moment of the call and
keeps nothing, so that a test or a notebook can change them; it raises `OptionError` for a value that cannot be meant.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import OptionError

__all__ = ["Settings", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    cache_dir: Path
    """Folder of everything that is kept between runs. It may not exist yet."""
    fuel: int | None = None
    """How many rewrites may be applied; None for all."""

    @property
    def cost_dir(self) -> Path:
        """Folder of the measured op costs."""
        return self.cache_dir / "costs"

    @property
    def floor_dir(self) -> Path:
        """Folder of the smallest programs found where a budget was refused."""
        return self.cache_dir / "floors"


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    found = os.environ if environ is None else environ
    return Settings(cache_dir=_cache_dir(found), fuel=_fuel(found.get("LOWTIDE_FUEL", "")))


def _cache_dir(environ: Mapping[str, str]) -> Path:
    own = environ.get("LOWTIDE_CACHE_DIR", "")
    if own:
        return _absolute(own)
    shared = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(shared) if shared and Path(shared).is_absolute() else _absolute("~/.cache")
    return base / "lowtide"


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # no home folder is known for this user
        return Path(text.replace("~", "/tmp", 1)).absolute()


def _fuel(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        fuel = int(text)
    except ValueError:
        fuel = -1
    if fuel < 0:
        raise OptionError(f"LOWTIDE_FUEL={text!r} is not a count of rewrites: give 0, 1, 2, ...")
    return fuel
