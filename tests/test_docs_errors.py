"""Every error code has a page: what it means, an example message, ways out. The pages go into the wheel; links resolve."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from lowtide import errors
from lowtide.cli.explain import known_errors, page

ROOT = Path(__file__).resolve().parents[1]
CODES = list(known_errors())


def test_the_codes_are_those_of_the_error_tree_at_the_top_of_the_file():
    drawn = re.findall(r"^\s+(\w+)\s+(F\d{3})\s", errors.__doc__ or "", flags=re.MULTILINE)
    assert {(kind.__name__, code) for code, kind in known_errors().items()} == set(drawn)


def test_no_two_classes_share_a_code():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = [kind for kind in classes if issubclass(kind, errors.LowtideError)]
    assert len(ours) == len(CODES)


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_page(code: str):
    text = page(code)
    title, rest = text.split("\n", 1)
    assert title.startswith(f"# {code}: ")
    meaning, example, ways_out = re.split(r"^## (?:Example|Ways out)$", rest, flags=re.MULTILINE)
    assert len(meaning.split()) > 15
    assert re.search(rf"```\n{code} .+\n```", example, flags=re.DOTALL)
    assert ways_out.count("\n- ") >= 2


@pytest.mark.parametrize("code", CODES)
def test_the_page_names_the_exit_code_where_it_is_not_the_usual_one(code: str):
    kind = known_errors()[code]
    if kind.exit_code in (3, 4):
        assert f"Exit code of the command: {kind.exit_code}." in page(code)


def test_no_page_without_a_code():
    assert {p.stem for p in (ROOT / "docs" / "errors").glob("F*.md")} == set(CODES)


def test_the_wheel_carries_the_pages(tmp_path: Path):
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(built).namelist())
    assert {f"lowtide/docs/errors/{code}.md" for code in CODES} <= names
    assert {"lowtide/py.typed", "lowtide/report/page.css", "lowtide/report/page.js"} <= names
    assert not [n for n in names if n.startswith(("tests", "examples"))]


def test_every_link_between_the_pages_leads_somewhere():
    for file in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text(encoding="utf-8")):
            if "://" not in target and "pictures/" not in target:  # drawn by `make picture`
                assert (file.parent / target).exists(), f"{file.relative_to(ROOT)}: {target}"
