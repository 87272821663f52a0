"""Bytes, seconds and budgets: how they are written and read.

A budget is a number of bytes (`6442450944`), a size (`"6GiB"`, `"1500MB"`), a share of the unplanned step's peak
(`"60%"`) or `"device"` (what is free on the device, less a reserve). A bare fraction is refused: torch's own knob
takes a ratio of saved activations, and a ratio of something else under the same look would be a trap.

Units are read exactly as people write them: `GB` is 10**9 bytes, `GiB` is 2**30. Anything near that, `6gib` or
`6G`, is refused with the nearest size that is one, because guessing wrong costs 7% of a device. What is printed is
always binary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from lowtide.errors import BudgetFormatError, OptionError

__all__ = [
    "Budget",
    "format_bytes",
    "format_percent",
    "format_seconds",
    "parse_budget",
    "parse_bytes",
]

_UNITS = {
    "B": 1,
    "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
# Devices are sold, and other tools print, "6G" and "6gb" for binary sizes: that is what is most likely meant.
_NEAR = {"b": "B"} | {
    f"{letter}{rest}".lower(): f"{letter}iB" for letter in "KMGT" for rest in ("", "i", "B", "iB")
}
# Groups of three only: in "1,5GiB" the comma is a decimal point to half of the world.
_NUMBER = r"[-+]?(?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?"
_FORMS = (
    'a size ("6GiB", "1500MB"), bytes as an int, a share of the unplanned peak ("60%") or "device"'
)


@dataclass(frozen=True, slots=True)
class Budget:
    """The most bytes a step may have allocated at once. Exactly one field is set."""

    bytes: int | None = None
    fraction: float | None = None
    """Share of the unplanned step's peak."""
    device: bool = False
    """What is free on the device when the plan is made."""

    def bytes_of(self, unplanned_peak: int) -> int:
        """For a step with this peak, where no device is at hand."""
        if self.device:
            raise OptionError(
                'budget "device" needs the device: give a size or a share of the unplanned peak'
            )
        return (
            self.bytes if self.bytes is not None else int(unplanned_peak * (self.fraction or 1.0))
        )

    def __str__(self) -> str:
        if self.bytes is not None:
            return format_bytes(self.bytes)
        return "device" if self.device else f"{100 * (self.fraction or 0):g}%"


def parse_budget(text: object) -> Budget:
    if isinstance(text, Budget):
        return text
    if isinstance(text, bool) or not isinstance(text, (int, str, float)):
        raise BudgetFormatError(f"a budget cannot be {type(text).__name__} {text!r}: give {_FORMS}")
    if isinstance(text, float):
        raise BudgetFormatError(_bare_number(text))
    if isinstance(text, int):
        return Budget(bytes=_positive(text, text))
    word = text.strip()
    if word.lower() == "device":
        return Budget(device=True)
    if word.endswith("%"):
        return Budget(fraction=_share(text))
    return Budget(bytes=_positive(parse_bytes(word), text))


def _bare_number(number: float) -> str:
    meant = f'"{100 * number:g}%" for a share of the unplanned peak'
    if number > 2:
        meant = f"{number:.0f} for bytes"
    return (
        f"a bare float {number!r} does not say of what: a budget is the peak of a whole step in bytes, not torch's "
        f'ratio of saved activations. Write {meant}, or a size such as "6GiB"'
    )


def _share(text: str) -> float:
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        raise BudgetFormatError(f"cannot read budget {text!r}: give {_FORMS}") from None
    if not 0 < share < float("inf"):
        raise BudgetFormatError(f"budget {text!r} must be above 0%")
    return share


def _positive(size: int, text: object) -> int:
    if size <= 0:
        raise BudgetFormatError(f"budget {text!r} must be above zero: give {_FORMS}")
    return size


def parse_bytes(text: str) -> int:
    match = re.fullmatch(rf"\s*({_NUMBER})\s*([A-Za-z]*)\s*", text)
    if not match:
        raise BudgetFormatError(f"cannot read {text!r} as a size: give {_FORMS}")
    written, unit = match[1], match[2]
    number = Decimal(re.sub("[,_]", "", written))
    if not unit and number != number.to_integral_value():
        raise BudgetFormatError(_bare_number(float(number)))
    if unit and unit not in _UNITS:
        raise BudgetFormatError(
            f"cannot read {text!r} as a size, {unit!r} is no unit: {_meant(written, unit)}"
        )
    return int(number * _UNITS[unit or "B"])


def _meant(number: str, unit: str) -> str:
    near = _NEAR.get(unit.lower())
    if near is None:
        return f"give {_FORMS}"
    decimal = unit.upper()
    aside = (
        f" ({decimal} is {_UNITS[decimal]:,} bytes)"
        if decimal in _UNITS and decimal != near
        else ""
    )
    return f"did you mean '{number}{near}'?{aside}"


def format_bytes(size: float) -> str:
    """Always binary units, three significant figures: 1.41 GiB."""
    if abs(round(size)) < 2**10:
        return f"{size:.0f} B"
    for unit, scale in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)):
        number = size / scale
        # 1023.7 KiB would print as 1024 KiB: it is 1.00 MiB.
        if abs(number) < 1023.5 or unit == "TiB":
            break
    return f"{_three_figures(number)} {unit}"


def _three_figures(number: float) -> str:
    for decimals, limit in ((2, 10), (1, 100)):
        if round(abs(number), decimals) < limit:
            return f"{number:.{decimals}f}"
    return f"{number:.0f}"


def format_seconds(seconds: float) -> str:
    size = abs(seconds)
    if size < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if size < 0.99995:
        return f"{seconds * 1e3:.1f} ms"
    if size < 119.995:
        return f"{seconds:.2f} s"
    return f"{seconds / 60:.1f} min"


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f}%"
