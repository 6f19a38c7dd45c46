"""Units as people write them."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from kwokfleet.api import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5s", 0.5), ("10s", 10), ("1m30s", 90), ("2h", 7200), ("7d", 604800), ("250ms", 0.25), (0, 0), ("0s", 0)],
)
def test_a_duration_has_its_unit(text: object, seconds: float) -> None:
    """Durations are read with any of the usual units, added up."""
    assert units.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["10", 10, "5 seconds", "-1s", "1.5.5s", "", None, True, "s", "99999d"])
def test_anything_else_is_no_duration(text: object) -> None:
    """A number without a unit, a sign, a word: each is refused, not guessed at."""
    with pytest.raises(ValueError, match="must be"):
        units.duration(text)


def test_a_span_has_two_bounds() -> None:
    """Ten to eleven seconds, and a fixed time as a span without width."""
    assert units.span("10s..11s") == units.Span(timedelta(seconds=10), timedelta(seconds=11))
    assert units.span("3s").fixed
    with pytest.raises(ValueError, match="lower bound must come first"):
        units.span("11s..10s")


@pytest.mark.parametrize(
    ("text", "per_second"), [("20/s", 20), ("6/m", 0.1), ("3600/h", 1), ("0.5/s", 0.5), ("1 / min", 1 / 60)]
)
def test_a_rate_is_a_number_per_time(text: str, per_second: float) -> None:
    """Rates are read per second, minute, hour or day."""
    assert units.rate(text) == pytest.approx(per_second)


@pytest.mark.parametrize("text", ["20", 20, "0/s", "-1/s", "20/week", "x/s"])
def test_a_bare_number_is_no_rate(text: object) -> None:
    """Twenty of what per what? Refused."""
    with pytest.raises(ValueError, match="must be"):
        units.rate(text)


def test_shares_and_percentages_are_not_mixed_up() -> None:
    """A probability of 2 is a mistake, 2% is not; a budget of 25 is 25 percent."""
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
def test_a_quantity_is_written_as_kubernetes_does(text: object, amount: str) -> None:
    """Amounts keep their spelling, and stand for the number the API server would read."""
    assert units.quantity(text) == str(text)
    assert units.quantity_value(units.quantity(text)) == Decimal(amount)


def test_a_wrong_suffix_is_answered_with_the_right_one() -> None:
    """Who writes 256GB means 256Gi."""
    with pytest.raises(ValueError, match="256Gi"):
        units.quantity("256GB")
    with pytest.raises(ValueError, match="0 or more"):
        units.quantity("-1")


def test_an_instant_has_date_and_offset() -> None:
    """Without an offset a time means something else on every machine."""
    assert units.instant("2026-03-01T08:00:00+01:00") == datetime(2026, 3, 1, 7, tzinfo=UTC)
    for wrong in ("2026-03-01", "2026-03-01T08:00:00", "08:00", 5):
        with pytest.raises(ValueError, match="offset"):
            units.instant(wrong)


def test_a_duration_is_shown_as_it_is_read() -> None:
    """What is shown can be read again."""
    for text in ("250ms", "90s", "1.5s", "0s"):
        assert units.format_duration(units.duration(text)) == text
