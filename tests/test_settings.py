from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import OptionError
from lowtide.settings import settings


def test_the_cache_folder() -> None:
    assert settings({"LOWTIDE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}).cache_dir == Path("/a")
    assert settings({"XDG_CACHE_HOME": "/b"}).cache_dir == Path("/b/lowtide")
    home = Path.home() / ".cache" / "lowtide"
    assert settings({"XDG_CACHE_HOME": "relative"}).cache_dir == home
    assert settings({}).cache_dir == home


def test_fuel() -> None:
    assert settings({}).fuel is None
    assert settings({"LOWTIDE_FUEL": " 3 "}).fuel == 3
    for wrong in ("lots", "-1"):
        with pytest.raises(OptionError, match="LOWTIDE_FUEL"):
            settings({"LOWTIDE_FUEL": wrong})


def test_variables_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", "/x")
    assert settings().cache_dir == Path("/x")
