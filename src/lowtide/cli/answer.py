"""What does a verb say, and how is it shown?

A verb returns an `Answer`: the numbers as data and the same as text. Text goes to a person, data to a program (`--json`); errors go to
stderr for the one, and as a JSON object to stdout for the other. Rich is used on a terminal only, so that pipes and files get plain text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lowtide.errors import BudgetError, LowtideError

__all__ = ["Answer", "show", "show_error", "working"]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    data: Mapping[str, object] = field(default_factory=dict)
    markdown: bool = False
    """The text is Markdown: rendered on a terminal, printed as it is elsewhere."""
    styled: Sequence[Sequence[tuple[str, str]]] = ()
    """The text's lines as words with their styles, for a terminal."""
    wrote: Path | None = None
    """The file this verb wrote."""
    next: str = ""
    """The next useful command."""
    said: bool = False
    """There is nothing to print: it was said on stderr, because stdout is somebody else's."""


def show(answer: Answer, *, as_json: bool) -> None:
    if answer.said:
        return
    if as_json:
        wrote = {"wrote": str(answer.wrote)} if answer.wrote else {}
        print(json.dumps({**answer.data, **wrote}, indent=2))
    else:
        _show_text(answer)
    sys.stdout.flush()


def _show_text(answer: Answer) -> None:
    if answer.markdown and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(answer.text))
    elif answer.styled and sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        for line in answer.styled:
            Console(soft_wrap=True, highlight=False).print(Text.assemble(*line))
    else:
        print(answer.text.rstrip("\n"))
    ending = [f"wrote {answer.wrote}"] if answer.wrote else []
    if answer.next:
        ending.append(f"next: {answer.next}")
    if ending:
        print("     ".join(ending))


def show_error(error: LowtideError, *, as_json: bool) -> int:
    """Print an error with the next step, and return the exit code it stands for."""
    advice = f"lowtide explain {error.code}"
    if as_json:
        floor = {"floor": error.floor} if isinstance(error, BudgetError) else {}
        facts = {"code": error.code, "message": str(error), "exit_code": error.exit_code, **floor}
        print(json.dumps({"error": {**facts, "next": advice}}, indent=2))
    print(error, file=sys.stderr)
    if advice not in str(error):
        print(f"next: {advice}", file=sys.stderr)
    return error.exit_code


@contextmanager
def working(on: str, *, quiet: bool) -> Iterator[None]:
    """A spinner on stderr while something takes its time, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(on):
        yield
