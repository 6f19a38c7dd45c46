"""Formatted numbers of a Result, for the terminal, Markdown and HTML."""

import re
from datetime import UTC, datetime

from kwokfleet.measure.compare import Unit
from kwokfleet.measure.result import Clock, Counts, Latency, Result

NO_DATA = "no data"
STATISTICS = ("min", "mean", "p50", "p90", "p95", "p99", "max")
"""Of a latency, in display order."""
CLOCKS = {
    Clock.WATCH: "receive times of the watch, exact to milliseconds",
    Clock.API: "timestamps in the objects, in whole seconds",
    Clock.CL2_2024: "ClusterLoader2's definition until May 2026: timestamps, and the watch for the end",
    Clock.CL2_2026: "ClusterLoader2's definition since May 2026: the watch only",
}


def duration(seconds: float | None) -> str:
    """Format a duration with three digits: `0.62 ms`, `62 ms`, `1.38 s`, `2m 5s`, `1h 3m`."""
    if seconds is None:
        return NO_DATA
    if seconds == 0:
        return "0 s"
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if round(size * 1000, 0) < 1000:  # noqa: PLR2004  # below a second
        return f"{sign}{_three_digits(size * 1000)} ms"
    if round(size, 1) < 60:  # noqa: PLR2004  # below a minute
        return f"{sign}{_three_digits(size)} s"
    minutes, rest = divmod(round(size), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h {minutes}m" if hours else f"{sign}{minutes}m {rest}s"


def _three_digits(size: float) -> str:
    digits = 2 if size < 10 else 1 if size < 100 else 0  # noqa: PLR2004  # powers of ten
    text = f"{size:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate(per_second: float | None) -> str:
    """Format a rate: `19.8/s`."""
    return NO_DATA if per_second is None else f"{_three_digits(per_second)}/s"


def share(part: float | None) -> str:
    """Format a share as a percentage."""
    return NO_DATA if part is None else f"{_three_digits(100 * part)} %"


def count(number: float | None) -> str:
    """Format a count."""
    return NO_DATA if number is None else f"{number:,.0f}"


def amount(value: float | None, unit: Unit) -> str:
    """Format a number by its unit."""
    return {Unit.SECONDS: duration, Unit.PER_SECOND: rate, Unit.COUNT: count}[unit](value)


def change(by: float | None, ratio: float | None, unit: Unit) -> str:
    """Format a difference: `+551 ms (+39.8 %)`."""
    if by is None:
        return NO_DATA
    text, sign = amount(abs(by), unit), "+" if by > 0 else "-"
    if not re.search("[1-9]", text):  # 0, or below the displayed digits
        return "0"
    return f"{sign}{text}" + (f" ({sign}{share(abs(ratio))})" if ratio is not None else "")


def instant(time: datetime | None) -> str:
    """Format a time in UTC, to the second."""
    return "-" if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def length(result: Result) -> float | None:
    """Return the duration of a Run in seconds; None while it is running."""
    return (result.end - result.start).total_seconds() if result.end else None


def verdict(result: Result) -> str:
    """Return the verdict on the gates: `passed`, `failed`, `no data`, `no gates`."""
    if result.passed is None:
        return "no gates"
    if result.passed:
        return "passed"
    return NO_DATA if all(gate.passed or gate.no_data for gate in result.gates) else "failed"


def main_latency(result: Result, name: str, of: str = "pods") -> Latency | None:
    """Return a latency by the watch clock, else the API clock; None without data."""
    latencies = (result.latency(name, of, clock) for clock in (Clock.WATCH, Clock.API))
    return next((latency for latency in latencies if latency and latency.count), None)


def sentence(counts: Counts) -> str:
    """Return counts as a sentence, without zero values."""
    scheduled = f", {counts.scheduled:,} scheduled" if counts.scheduled else ""
    ran = f", {counts.running:,} ran" if counts.running else ""
    deleted = f", {counts.deleted:,} deleted before their end" if counts.deleted else ""
    created = f"{counts.created:,} of {counts.total:,} created{scheduled}{ran}"
    return f"{created}, {counts.completed:,} completed, {counts.failed:,} failed{deleted}"


def identifier(result: Result) -> str:
    """Return a Run's name for file names."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{result.fleet}-{result.wave}-{result.run}")
