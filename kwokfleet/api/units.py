"""Parsers for quantities, durations, rates and percentages: `256Gi`, `10s..11s`, `20/s`, `25%`.

Each parser returns a value, or raises ValueError with a message that names the expected format.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

ZERO = timedelta()

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
MAX_DURATION = timedelta(days=3650)
_YEARS = range(1970, 3000)
_MAX_REQUEST_SHARE = 10.0
"""Usage limit relative to the request. Bursts reach ten times the request; more is a typing error."""

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*/\s*(s|m|h|d|sec|second|min|minute|hour|day)")
_MIN_RATE, _MAX_RATE = 1 / MAX_DURATION.total_seconds(), 1e6
_RATE_UNIT_S = {"sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, **_UNIT_S}

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))((?:[KMGTPE]i|[numkMGTPE])?|[eE][+-]?[0-9]{1,2})")
_SUFFIX = {
    "": Decimal(1),
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


@dataclass(frozen=True, slots=True)
class Span:
    """A range of durations. A fixed duration has equal bounds."""

    low: timedelta
    high: timedelta

    @property
    def fixed(self) -> bool:
        """Whether the bounds are equal."""
        return self.low == self.high


def duration(text: object) -> timedelta:
    """Parse `0.5s`, `1m30s`, `2h`, `7d`. 0 needs no unit."""
    if text == 0 and not isinstance(text, bool):
        return ZERO
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        is_number = isinstance(text, int | float) and not isinstance(text, bool)
        example = f"{text}s" if is_number else "0.5s or 1m30s"
        raise ValueError(f"must be a duration with a unit (ms, s, m, h, d), for example {example}")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(text))
    if seconds > MAX_DURATION.total_seconds():
        raise ValueError(f"must be at most {MAX_DURATION.days} days")
    return timedelta(seconds=round(seconds, 6))


def span(text: object) -> Span:
    """Parse a duration (`10s`) or a range (`10s..11s`)."""
    if isinstance(text, str) and ".." in text:
        first, _, last = text.partition("..")
        try:
            low, high = duration(first.strip()), duration(last.strip())
        except ValueError:
            raise ValueError("must be a range of two durations with units, for example 10s..11s") from None
        if high < low:
            raise ValueError(f"the lower bound must come first, for example {last.strip()}..{first.strip()}")
        return Span(low, high)
    fixed = duration(text)
    return Span(fixed, fixed)


def rate(text: object) -> float:
    """Parse `20/s`, `5/m`, `100/h`; return the rate per second."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise ValueError("must be a rate, for example 20/s, 5/m or 100/h")
    per_second = float(match[1]) / _RATE_UNIT_S[match[2]]
    if per_second <= 0:
        raise ValueError("must be more than 0")
    if not _MIN_RATE <= per_second <= _MAX_RATE:
        raise ValueError(f"must be between 1 in {MAX_DURATION.days} days and {_MAX_RATE:,.0f}/s")
    return per_second


def share(text: object) -> float:
    """Parse a share, `0.02` or `2%`; return a number between 0 and 1."""
    value = percent_share(text) if isinstance(text, str) else text
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("must be a number between 0 and 1, or a percentage, for example 2%")
    return float(value)


def percent(text: object) -> float:
    """Parse a percentage, `25` or `25%`; return a number between 0 and 100."""
    value = None if isinstance(text, bool) else text
    if isinstance(value, str):
        part = percent_share(value)
        value = None if part is None else round(part * 100, 9)
    if not isinstance(value, int | float) or not 0 <= value <= 100:  # noqa: PLR2004  # percent
        raise ValueError("must be a percentage between 0 and 100, for example 25%")
    return float(value)


def percent_share(text: str) -> float | None:
    """Return a percentage as a share, or None for another text."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text)
    return float(match[1]) / 100 if match else None


def quantity(text: object) -> str:
    """Validate a Kubernetes quantity (`32`, `500m`, `256Gi`); return its text."""
    written = str(text) if isinstance(text, int | float) and not isinstance(text, bool) else text
    if not isinstance(written, str) or not _QUANTITY.fullmatch(written):
        close = re.fullmatch(r"([0-9.]+)\s*([kKmMgGtTpP])(?:i?[bB])", written) if isinstance(written, str) else None
        example = f"{close[1]}{close[2].upper()}i" if close else "32, 500m or 256Gi"
        raise ValueError(f"must be a Kubernetes quantity, for example {example}")
    if quantity_value(written) < 0:
        raise ValueError(f"must be 0 or more, got {written}")
    return written


def usage(text: object) -> str:
    """Validate a resource usage: a quantity (`500m`), or a percentage of the request (`60%`)."""
    if isinstance(text, str) and "%" in text:
        part = percent_share(text)
        if part is None or part > _MAX_REQUEST_SHARE:
            raise ValueError(f"must be a quantity, or at most {_MAX_REQUEST_SHARE:.0%} of the request, for example 60%")
        return text.replace(" ", "")
    return quantity(text)


def quantity_value(text: str) -> Decimal:
    """Return the numeric value of a quantity."""
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"must be a Kubernetes quantity, got {text!r}")
    number, suffix = Decimal(match[1]), match[2]
    return number * _SUFFIX[suffix] if suffix in _SUFFIX else number.scaleb(int(suffix[1:]))


def instant(text: object) -> datetime:
    """Parse an RFC 3339 time with offset: `2026-03-01T08:00:00Z`."""
    try:
        value = datetime.fromisoformat(text) if isinstance(text, str) and "T" in text else None
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise ValueError(
            "must be an RFC 3339 time with offset, for example 2026-03-01T08:00:00Z or 2026-03-01T08:00:00+01:00"
        )
    if value.year not in _YEARS:
        raise ValueError(f"the year must be between {_YEARS.start} and {_YEARS.stop - 1}, got {value.year}")
    return value.astimezone(UTC)


def format_duration(value: timedelta) -> str:
    """Format a duration in the format that `duration` parses: `90s`, `500ms`, `1.5s`."""
    milliseconds = value / timedelta(milliseconds=1)
    if milliseconds < 1000 and milliseconds:  # noqa: PLR2004  # below a second
        return f"{milliseconds:g}ms"
    return f"{value.total_seconds():.10g}s"
