"""What can go wrong, with a code, a cause in numbers and a next step.

    LowtideError                 F000  anything Lowtide refuses or fails at
      BudgetError                F012  no plan fits the budget; carries the floor
        VerificationError        F060  plans fit the budget, but measured steps do not
      DifferenceError            F061  a planned step gave other numbers than the model without a plan
      BudgetFormatError          F011  a budget that is not one ("lots", 0.5, -1)
      CaptureError               F020  the training step could not be captured
        NoGradientError          F021  nothing in the model is trained
        NoTensorOutputError      F022  the model returns no tensor to start backward from
      GraphError                 F030  a malformed graph or program
      PlanMismatchError          F040  a plan of another graph
      FileFormatError            F041  a file that is not ours, damaged, or of another version
      OptionError                F050  an option that does not exist or has a wrong value

Each code has a page in docs/errors/, printed by `lowtide explain CODE`. Exit codes of the command: 1 failure, 2 usage,
3 budget infeasible, 4 verification failed.
"""

from __future__ import annotations

from difflib import get_close_matches

__all__ = [
    "BudgetError",
    "BudgetFormatError",
    "CaptureError",
    "DifferenceError",
    "FileFormatError",
    "GraphError",
    "LowtideError",
    "NoGradientError",
    "NoTensorOutputError",
    "OptionError",
    "PlanMismatchError",
    "VerificationError",
    "did_you_mean",
]


class LowtideError(Exception):
    """Anything Lowtide refuses or fails at."""

    code = "F000"
    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.code} {message}")


class BudgetError(LowtideError):
    """No plan fits the budget. `floor` is the smallest peak a plan was found for, in bytes."""

    code = "F012"
    exit_code = 3

    def __init__(self, message: str, *, floor: int) -> None:
        super().__init__(message)
        self.floor = floor


class VerificationError(BudgetError):
    """Plans fit the budget, but measured steps do not."""

    code = "F060"
    exit_code = 4


class DifferenceError(LowtideError):
    """A planned step gave other numbers than the model without a plan."""

    code = "F061"
    exit_code = 4


class BudgetFormatError(LowtideError, ValueError):
    """A budget that is not one."""

    code = "F011"
    exit_code = 2


class CaptureError(LowtideError):
    """The training step could not be captured."""

    code = "F020"


class NoGradientError(CaptureError):
    """Nothing in the model is trained."""

    code = "F021"


class NoTensorOutputError(CaptureError):
    """The model returns no tensor that backward could start from."""

    code = "F022"


class GraphError(LowtideError):
    """A malformed graph or program."""

    code = "F030"


class PlanMismatchError(LowtideError):
    """A plan of another graph."""

    code = "F040"


class FileFormatError(LowtideError):
    """A file that is not ours, is damaged, or was written by another version."""

    code = "F041"


class OptionError(LowtideError, ValueError):
    """An option that does not exist or has a wrong value."""

    code = "F050"
    exit_code = 2


def did_you_mean(word: str, known: list[str]) -> str:
    """`; did you mean 'budget'?` or nothing."""
    close = get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
