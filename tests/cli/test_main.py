"""One place turns errors into exit codes, and the list of verbs and flags does not grow unseen."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from lowtide import cli, errors
from lowtide.cli import explain
from lowtide.cli.answer import Answer

FLAGS = {
    "bench": {
        "name",
        "--data",
        "--model",
        "--profile",
        "--budget",
        "--batch",
        "--seconds",
        "--all",
        "--models",
        "--budgets",
        "--solvers",
        "--device",
        "--graphs",
        "--scale",
        "-o --output",
        "-f --force",
        "--rounds",
        "--unrolled",
    },
    "profile": {
        "script",
        "-m",
        "--steps",
        "--go-on",
        "--no-graph",
        "--fake",
        "--device",
        "-o --output",
        "-f --force",
    },
    "plan": {"file", "--budget", "-o --output", "-f --force", "--seconds", "--solver"},
    "run": {
        "--budget",
        "--plan",
        "-o --output",
        "-f --force",
        "--allow",
        "--seconds",
        "--verify",
        "--steps",
        "-m",
        "script",
    },
    "batch": {
        "--budget",
        "--start",
        "--most",
        "--steps",
        "--seconds",
        "--allow",
        "-m",
        "script",
    },
    "report": {
        "file",
        "-o --output",
        "-f --force",
        "--frontier",
        "--seconds",
        "--measured",
        "--trace",
    },
    "explain": {"code"},
    "cache": {"action"},
}


class FailCommand:
    """Fail as told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Nothing to add."""

    def run(self, options: argparse.Namespace) -> Answer:
        raise self.error


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(cli, "COMMANDS", (FailCommand(error),))
    return cli.main(["fail", *flags])


def test_the_verbs_and_flags_are_these():
    found: dict[str, set[str]] = {}
    for command in cli.COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        command.prepare_parser(parser)
        found[cli.verb(command)] = {" ".join(a.option_strings) or a.dest for a in parser._actions}
    assert found == FLAGS


@pytest.mark.parametrize("verb", FLAGS)
def test_every_verb_explains_itself_and_takes_json(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CaptureError("it broke"), 1),
        (errors.OptionError("no such thing"), 2),
        (errors.BudgetFormatError("not a budget"), 2),
        (errors.BudgetError("too small", floor=7), 3),
        (errors.VerificationError("not as planned", floor=1), 4),
        (FileNotFoundError(2, "No such file or directory", "x.graph.json"), 1),
    ],
)
def test_errors_become_exit_codes(error, code, monkeypatch, capsys):
    assert fail_with(error, monkeypatch) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    first, last = shown.err.splitlines()
    expected = getattr(error, "code", "F000")
    assert first.startswith(f"{expected} ")
    assert last == f"next: lowtide explain {expected}"


def test_errors_as_json_carry_the_floor(monkeypatch, capsys):
    assert fail_with(errors.BudgetError("too small", floor=7), monkeypatch, "--json") == 3
    shown = json.loads(capsys.readouterr().out)["error"]
    assert shown == {
        "code": "F012",
        "message": "F012 too small",
        "exit_code": 3,
        "floor": 7,
        "next": "lowtide explain F012",
    }


def test_an_interrupt_is_not_a_traceback(monkeypatch, capsys):
    assert fail_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_bug_is_a_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        fail_with(ZeroDivisionError(), monkeypatch)


@pytest.mark.parametrize("arguments", [[], ["plna"], ["plan", "x"], ["cache", "burn"]])
def test_wrong_usage_exits_with_two(arguments: list[str], capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: lowtide" in capsys.readouterr().err


@pytest.mark.parametrize("code", ["F012", "f012"])
def test_explain_prints_the_page(code: str, capsys):
    assert cli.main(["explain", code]) == 0
    assert capsys.readouterr().out == explain.page("F012")


def test_explain_as_json(capsys):
    assert cli.main(["explain", "F012", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"code": "F012", "page": explain.page("F012")}


def test_explain_suggests(capsys):
    assert cli.main(["explain", "FO12"]) == 2
    assert "did you mean 'F012'?" in capsys.readouterr().err


def test_explain_lists_all_codes(capsys):
    assert cli.main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(explain.known_errors())
    assert lines[-1] == "next: lowtide explain CODE"


def test_explain_reads_the_installed_pages_first(tmp_path: Path, monkeypatch):
    folder = tmp_path / "docs" / "errors"
    folder.mkdir(parents=True)
    (folder / "F012.md").write_text("installed")
    monkeypatch.setattr("lowtide.__file__", str(tmp_path / "__init__.py"))
    assert explain.page("F012") == "installed"
