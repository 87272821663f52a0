"""`lowtide explain`: the page of an error code.

The pages are docs/errors/CODE.md. An installed package carries a copy beside its modules; in a checkout the documentation itself is read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lowtide
from lowtide.cli.answer import Answer
from lowtide.errors import LowtideError, OptionError, did_you_mean

__all__ = ["ExplainCommand", "known_errors", "page"]


class ExplainCommand:
    """Explain an error code.

    Prints what the code means, an example, and the ways out. Without CODE: the list of all codes.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("code", metavar="CODE", nargs="?", help="an error code, such as F012")

    def run(self, options: argparse.Namespace) -> Answer:
        if options.code is None:
            return _all_codes()
        code = options.code.upper()
        if code not in known_errors():
            hint = did_you_mean(code, list(known_errors()))
            raise OptionError(
                f"no error has the code {options.code!r}{hint or '; `lowtide explain` lists all codes'}"
            )
        text = page(code)
        return Answer(text, {"code": code, "page": text}, markdown=True)


def known_errors() -> dict[str, type[LowtideError]]:
    """Every error class by its code, in the order of the codes."""
    found: list[type[LowtideError]] = [LowtideError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return {kind.code: kind for kind in sorted(found, key=lambda kind: kind.code)}


def page(code: str) -> str:
    inside = Path(lowtide.__file__).parent
    for folder in (inside / "docs" / "errors", inside.parents[1] / "docs" / "errors"):
        if (folder / f"{code}.md").is_file():
            return (folder / f"{code}.md").read_text(encoding="utf-8")
    raise LowtideError(f"the page of {code} is not installed")


def _all_codes() -> Answer:
    meaning = {code: (kind.__doc__ or "").splitlines()[0] for code, kind in known_errors().items()}
    text = "\n".join(f"{code}  {words}" for code, words in meaning.items())
    return Answer(text, {"codes": meaning}, next="lowtide explain CODE")
