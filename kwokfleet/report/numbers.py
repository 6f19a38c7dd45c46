"""Numbers of a Result as people read them, the same in the terminal, in Markdown and on the page."""

import re
from datetime import UTC, datetime

from kwokfleet.measure.compare import Unit
from kwokfleet.measure.result import Clock, Counts, Latency, Result

NO_DATA = "no data"
STATISTICS = ("min", "mean", "p50", "p90", "p95", "p99", "max")
"""Of a latency, in the order in which they are shown."""
CLOCKS = {
    Clock.WATCH: "when our watch received the states: exact to milliseconds",
    Clock.API: "timestamps written into the objects: whole seconds",
    Clock.CL2_2024: "as ClusterLoader2 defined it until May 2026: timestamps, and the watch at the end",
    Clock.CL2_2026: "as ClusterLoader2 has defined it since: the watch alone",
}


def duration(seconds: float | None) -> str:
    """Write a duration in three digits: `0.62 ms`, `62 ms`, `1.38 s`, `2m 5s`, `1h 3m`."""
    if seconds is None:
        return NO_DATA
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size == 0:
        return "0 s"
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
    """Write a rate: `19.8/s`."""
    return NO_DATA if per_second is None else f"{_three_digits(per_second)}/s"


def share(part: float | None) -> str:
    """Write a share as a percentage."""
    return NO_DATA if part is None else f"{_three_digits(100 * part)} %"


def count(number: float | None) -> str:
    """Write a number of things."""
    return NO_DATA if number is None else f"{number:,.0f}"


def amount(value: float | None, unit: Unit) -> str:
    """Write a number by what it counts."""
    return {Unit.SECONDS: duration, Unit.PER_SECOND: rate, Unit.COUNT: count}[unit](value)


def change(by: float | None, ratio: float | None, unit: Unit) -> str:
    """Write a difference: `+551 ms (+39.8 %)`."""
    if by is None:
        return NO_DATA
    text = amount(abs(by), unit)
    if not by or not re.search("[1-9]", text):  # less than a digit shows
        return "0"
    relative = f" ({'+' if by > 0 else '-'}{share(abs(ratio))})" if ratio is not None else ""
    return f"{'+' if by > 0 else '-'}{text}{relative}"


def instant(when: datetime | None) -> str:
    """Write a time to the second, in UTC."""
    return "-" if when is None else when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def length(made: Result) -> float | None:
    """Return how long a Run took; None while nobody knows."""
    return (made.end - made.start).total_seconds() if made.end else None


def verdict(made: Result) -> str:
    """Say whether the gates held: `passed`, `failed`, `no data`, `no gates`."""
    if made.passed is None:
        return "no gates"
    if made.passed:
        return "passed"
    return NO_DATA if all(gate.passed or gate.no_data for gate in made.gates) else "failed"


def main_latency(made: Result, name: str, of: str = "pods") -> Latency | None:
    """Return a latency by the best clock that has data, None if none has."""
    found = (made.latency(name, of, clock) for clock in (Clock.WATCH, Clock.API))
    return next((each for each in found if each and each.count), None)


def sentence(counts: Counts) -> str:
    """Say how far things came, leaving out what did not happen."""
    told = [f"{counts.created:,} of {counts.total:,} created"]
    told += [f"{counts.scheduled:,} scheduled"] if counts.scheduled else []
    told += [f"{counts.running:,} ran"] if counts.running else []
    told += [f"{counts.completed:,} completed", f"{counts.failed:,} failed"]
    told += [f"{counts.deleted:,} deleted before they were over"] if counts.deleted else []
    return ", ".join(told)


def identifier(made: Result) -> str:
    """Return a Run's name as a part of file names."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{made.fleet}-{made.wave}-{made.run}")
