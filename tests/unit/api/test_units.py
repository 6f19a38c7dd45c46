"""Parsing and formatting of units."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from kwokfleet.api import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5s", 0.5), ("10s", 10), ("1m30s", 90), ("2h", 7200), ("7d", 604800), ("250ms", 0.25), (0, 0), ("0s", 0)],
)
def test_a_duration_is_parsed_with_its_units(text: object, seconds: float) -> None:
    """Several units are added."""
    assert units.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["10", 10, "5 seconds", "-1s", "1.5.5s", "", None, True, "s", "99999d"])
def test_invalid_durations_are_rejected(text: object) -> None:
    """A number without a unit, a sign, a word."""
    with pytest.raises(ValueError, match="must be"):
        units.duration(text)


def test_a_range_has_two_bounds() -> None:
    """A fixed duration is a range with equal bounds."""
    assert units.span("10s..11s") == units.Span(timedelta(seconds=10), timedelta(seconds=11))
    assert units.span("3s").fixed
    with pytest.raises(ValueError, match="lower bound must come first"):
        units.span("11s..10s")


@pytest.mark.parametrize(
    ("text", "per_second"), [("20/s", 20), ("6/m", 0.1), ("3600/h", 1), ("0.5/s", 0.5), ("1 / min", 1 / 60)]
)
def test_a_rate_is_parsed_with_its_unit(text: str, per_second: float) -> None:
    """Per second, minute, hour or day."""
    assert units.rate(text) == pytest.approx(per_second)


@pytest.mark.parametrize("text", ["20", 20, "0/s", "-1/s", "20/week", "x/s"])
def test_invalid_rates_are_rejected(text: object) -> None:
    """A number without a unit, zero, a negative number, an unknown unit."""
    with pytest.raises(ValueError, match="must be"):
        units.rate(text)


def test_probabilities_and_percentages_are_distinguished() -> None:
    """A probability of 2 is rejected, 2% is accepted; a budget of 25 is 25 percent."""
    assert units.share(0.02) == units.share("2%") == pytest.approx(0.02)
    assert units.percent(25) == units.percent("25%") == pytest.approx(25)
    for wrong in (2, "2", -0.1, True, "x"):
        with pytest.raises(ValueError, match="must be"):
            units.share(wrong)
    for wrong in (101, "101%", -1, True, "x"):
        with pytest.raises(ValueError, match="must be"):
            units.percent(wrong)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        (32, "32"),
        ("500m", "0.5"),
        ("256Gi", "274877906944"),
        ("1e3", "1000"),
        (1.5, "1.5"),
        ("2k", "2000"),
        ("1Ki", "1024"),
    ],
)
def test_a_quantity_is_parsed_as_in_kubernetes(text: object, amount: str) -> None:
    """It keeps its spelling and has the API server's value."""
    assert units.quantity(text) == str(text)
    assert units.quantity_value(units.quantity(text)) == Decimal(amount)


def test_a_wrong_suffix_has_the_right_one_as_hint() -> None:
    """256GB gives the hint 256Gi."""
    with pytest.raises(ValueError, match="256Gi"):
        units.quantity("256GB")
    with pytest.raises(ValueError, match="0 or more"):
        units.quantity("-1")


def test_a_timestamp_needs_a_date_and_an_offset() -> None:
    """Without an offset, its value depends on the local time zone."""
    assert units.instant("2026-03-01T08:00:00+01:00") == datetime(2026, 3, 1, 7, tzinfo=UTC)
    for wrong in ("2026-03-01", "2026-03-01T08:00:00", "08:00", 5):
        with pytest.raises(ValueError, match="offset"):
            units.instant(wrong)


def test_a_formatted_duration_is_parsed_back() -> None:
    """Formatting and parsing are inverse."""
    for text in ("250ms", "90s", "1.5s", "0s"):
        assert units.format_duration(units.duration(text)) == text
