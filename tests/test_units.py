"""Budgets are read as people write them, refused where they could mean two things, and printed in three figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import BudgetFormatError
from lowtide.units import (
    Budget,
    format_bytes,
    format_percent,
    format_seconds,
    parse_budget,
    parse_bytes,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("7B", 7),
        ("6442450944", 6 * 2**30),
        ("6e9", 6 * 10**9),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1500MB", 1_500_000_000),
        ("1MiB", 2**20),
        ("6GB", 6 * 10**9),
        ("6GiB", 6 * 2**30),
        ("  6 GiB ", 6 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("0.1GB", 10**8),
        ("2TB", 2 * 10**12),
        ("2TiB", 2**41),
        ("1_500MB", 1_500_000_000),
        ("1,500,000 KB", 1_500_000_000),
        ("9007199254740993", 9007199254740993),
        ("-1GiB", -(2**30)),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("6gib", "did you mean '6GiB'?"),
        ("6GIB", "did you mean '6GiB'?"),
        ("6gb", "did you mean '6GiB'? (GB is 1,000,000,000 bytes)"),
        ("6Gb", "did you mean '6GiB'? (GB is 1,000,000,000 bytes)"),
        ("6G", "did you mean '6GiB'?"),
        ("6Gi", "did you mean '6GiB'?"),
        ("1.5 mib", "did you mean '1.5MiB'?"),
        ("1,500mb", "did you mean '1,500MiB'? (MB is 1,000,000 bytes)"),
        ("7b", "did you mean '7B'?"),
        ("512k", "did you mean '512KiB'?"),
    ],
)
def test_a_unit_in_another_case_is_refused_with_the_nearest_one(text: str, meant: str) -> None:
    with pytest.raises(BudgetFormatError) as error:
        parse_bytes(text)
    assert str(error.value).endswith(meant)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lots",
        "GiB",
        "6 apples",
        "6GiB7",
        "1,5GiB",
        "1__0MB",
        "1e400",
        "1e9999999999",
        "6.GiB",
        "\u0663GiB",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BudgetFormatError, match="give a size"):
        parse_bytes(text)


def test_budgets() -> None:
    assert parse_budget(123) == Budget(bytes=123)
    assert parse_budget("6GiB") == Budget(bytes=6 * 2**30)
    assert parse_budget(" 60% ") == Budget(fraction=0.6)
    assert parse_budget("120%") == Budget(fraction=1.2)
    assert parse_budget("Device") == Budget(device=True)
    assert parse_budget(Budget(device=True)) == Budget(device=True)


@pytest.mark.parametrize("text", [0.5, 1.0])
def test_a_bare_float_is_refused_with_the_reason(text: float) -> None:
    with pytest.raises(
        BudgetFormatError, match=r"does not say of what.*ratio of saved activations"
    ) as error:
        parse_budget(text)
    assert f'"{100 * text:g}%"' in str(error.value)


def test_a_bare_fraction_as_text_is_refused_alike() -> None:
    with pytest.raises(BudgetFormatError, match=r'does not say of what.*"50%"'):
        parse_budget("0.5")


def test_bytes_as_a_float_are_answered_with_the_int() -> None:
    with pytest.raises(BudgetFormatError, match="Write 6000000000 for bytes"):
        parse_budget(6e9)


@pytest.mark.parametrize("text", [0, -1, "0", "-6GiB", "0.2B", "0%", "-5%", "nan%", "inf%"])
def test_a_budget_is_above_zero(text: object) -> None:
    with pytest.raises(BudgetFormatError, match="must be above"):
        parse_budget(text)


@pytest.mark.parametrize("text", [None, True, [1], b"6GiB", "%", "x%"])
def test_what_is_no_budget_is_refused(text: object) -> None:
    with pytest.raises(BudgetFormatError, match="give a size"):
        parse_budget(text)


def test_a_budget_error_is_a_value_error_with_a_code() -> None:
    with pytest.raises(ValueError, match=r"^F011 "):
        parse_budget("lots")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (1023 * 1024, "1023 KiB"),
        (10 * 2**20 - 1, "10.0 MiB"),
        (100 * 2**20 - 1, "100 MiB"),
        (1.41 * 2**30, "1.41 GiB"),
        (2**31, "2.00 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (5000 * 2**40, "5000 TiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_bytes_are_printed_in_binary_units(size: float, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_what_is_printed_is_read_back_within_its_figures(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (12e-6, "12 us"),
        (0.0009996, "1.0 ms"),
        (0.0012, "1.2 ms"),
        (0.99996, "1.00 s"),
        (3.14159, "3.14 s"),
        (119.999, "2.0 min"),
        (600, "10.0 min"),
        (-2.5, "-2.50 s"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_percent_and_budget_text() -> None:
    assert format_percent(0.0312) == "+3.1%"
    assert format_percent(-0.5) == "-50.0%"
    assert [str(parse_budget(b)) for b in ("6GiB", "60%", "device")] == [
        "6.00 GiB",
        "60%",
        "device",
    ]
