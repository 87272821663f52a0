"""What the documentation shows in Python runs, page by page; what it types at a prompt is a command that exists.

A page's blocks run one after another in one namespace. What a reader need not see (a small model, a batch) stands in an HTML comment.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from lowtide.cli import COMMANDS, verb

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
VERBS = {verb(command) for command in COMMANDS}


def blocks(page: Path, kind: str) -> list[str]:
    found: list[str] = re.findall(
        rf"^```{kind}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    return found


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: str(p.relative_to(ROOT))
)
def test_python(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimated: None
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # where the compiler looks a function's globals up
    monkeypatch.setitem(sys.modules, "page", module)
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, block {number}", "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands(page: Path) -> None:
    for block in (*blocks(page, ""), *blocks(page, "sh")):
        for line in block.splitlines():
            words = line.removeprefix("$ ").partition("#")[0].split()
            if len(words) > 1 and words[0] == "lowtide" and re.fullmatch(r"[a-z]+", words[1]):
                assert words[1] in VERBS, f"{page.name}: there is no {line!r}"
