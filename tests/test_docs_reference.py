"""Do the reference pages say everything: each option of each verb, each public name with its arguments?"""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

import pytest

import lowtide
from lowtide.cli import COMMANDS, Command, make_parser, verb

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
COMMAND_LINE = (PAGES / "command-line.md").read_text()
PYTHON = (PAGES / "python.md").read_text()
EVERYWHERE = {"--help", "-h", "--json"}


def section(page: str, heading: str) -> str:
    (found,) = re.findall(rf"^## {heading}.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("command", COMMANDS, ids=verb)
def test_every_option(command: Command) -> None:
    name = verb(command)
    text = section(COMMAND_LINE, f"lowtide {name}")
    (verbs,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    known = {o for a in verbs.choices[name]._actions for o in a.option_strings} - EVERYWHERE
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    assert known <= shown | EVERYWHERE
    assert {o for o in shown if o.startswith("--")} <= known | EVERYWHERE | {
        "--fake",
        "--plan",
        "--batch-size",
    }


@pytest.mark.parametrize("name", [n for n in lowtide.__all__ if inspect.isfunction(getattr(lowtide, n))])  # fmt: skip
def test_every_argument(name: str) -> None:
    (shown,) = re.findall(rf"^{name}\((.*?)\) -> ", PYTHON, re.MULTILINE | re.DOTALL)
    signature = inspect.signature(getattr(lowtide, name))
    expected = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in signature.parameters.values()]  # fmt: skip
    found = [part for part in re.split(r",\s+", shown.replace('"', "'")) if part != "*"]
    assert found == expected


def test_every_name() -> None:
    assert [n for n in lowtide.__all__ if f"lowtide.{n}" not in PYTHON] == []


def test_every_attribute_of_a_plan_that_is_shown_exists() -> None:
    rows = re.findall(r"^\| (`.*?) \|", section(PYTHON, "lowtide.Plan"), re.MULTILINE)
    names = {n for row in rows for n in re.findall(r"`(\w+)", row)}
    fields = set(inspect.get_annotations(lowtide.Plan))
    assert len(names) > 15
    assert {n for n in names if not hasattr(lowtide.Plan, n)} <= fields
