"""Output: results on standard output, everything else on standard error."""

import shutil
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from kwokfleet import errors, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from rich.console import Console

    from kwokfleet.embedded.progress import ProgressReporter

_log_options: tuple[settings.LogLevel | None, settings.LogFormat | None] = (None, None)


def read_settings() -> settings.Settings:
    """Return the settings: the environment, overridden by the global options."""
    read = settings.from_environment()
    level, log_format = _log_options
    return replace(read, log_level=level or read.log_level, log_format=log_format or read.log_format)


def set_log_options(level: settings.LogLevel | None, log_format: settings.LogFormat | None) -> None:
    """Set the global log options; raise if a variable of the environment is invalid."""
    global _log_options  # noqa: PLW0603 - the options of the one command line this process has
    _log_options = (level, log_format)
    read_settings()


def start_logging(*, quiet: bool = False) -> None:
    """Configure logging. Only commands that log call this: the import of structlog takes 0.1 s.

    *quiet*: log errors only, unless a level is set.
    """
    from kwokfleet.cli import logging

    read = read_settings()
    level = read.log_level or (settings.LogLevel.ERROR if quiet else settings.LogLevel.INFO)
    logging.configure(level, read.log_format, colors=read.color)


def console(*, stderr: bool = False) -> "Console":
    """Return a console that obeys NO_COLOR and, in a pipe, never wraps or truncates."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream and stream.isatty() else 200
    return Console(stderr=stderr, width=width, highlight=False, emoji=False)


def show_progress() -> "AbstractContextManager[ProgressReporter]":
    """Show the progress of downloads, builds and starts on standard error until the block ends."""
    from kwokfleet.cli import progress

    return progress.show(console(stderr=True))


def use_color() -> bool:
    """Return whether standard output is a terminal, and colors are allowed."""
    return sys.stdout.isatty() and read_settings().color


def styled(text: str, color: str | None = None, *, bold: bool | None = None) -> str:
    """Return a text for standard output, with a style if colors are used."""
    return typer.style(text, fg=color, bold=bold) if use_color() else text


def can_print(text: str, encoding: str | None) -> bool:
    """Return whether the encoding of a stream supports a text."""
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def program() -> str:
    """Return the command that runs kwokfleet in this shell."""
    if "kubectl-kwokfleet" in sys.argv[0]:
        return "kubectl kwokfleet"
    if shutil.which("kwokfleet"):
        return "kwokfleet"
    return f"{sys.executable} -m kwokfleet" if sys.argv[0].endswith("__main__.py") else sys.argv[0]


def print_line(text: str) -> None:
    """Print a line to standard error."""
    typer.echo(text, err=True)


def print_lines(lines: "Iterable[str]") -> None:
    """Print lines to standard error."""
    for line in lines:
        print_line(line)


def print_error(error: errors.KwokfleetError) -> None:
    """Print an error and its next step."""
    _print_labelled("error", str(error), typer.colors.RED)
    if error.hint:
        _print_labelled(" next", error.hint, typer.colors.CYAN)


def print_bug(error: Exception) -> None:
    """Print an unexpected exception with its traceback."""
    print_line("".join(traceback.format_exception(error)))
    _print_labelled("error", f"bug in kwokfleet: {type(error).__name__}: {error}", typer.colors.RED)
    _print_labelled(" next", "report it with the lines above and your command", typer.colors.CYAN)


def _print_labelled(label: str, text: str, color: str) -> None:
    use_color = sys.stderr.isatty() and settings.is_color_allowed()
    print_line((typer.style(f"{label}:", fg=color, bold=True) if use_color else f"{label}:") + f" {text}")


def age(created: str) -> str:
    """Return the age of an RFC 3339 time."""
    from datetime import UTC, datetime

    if not created:
        return "-"
    return age_of(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()))


def age_of(seconds: float) -> str:
    """Return an age as kubectl prints it: at most two units."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour}h"
    if hours:
        return f"{hours}h{minute}m"
    return f"{minutes}m{second}s" if minutes else f"{second}s"


def duration_text(duration: "timedelta") -> str:
    """Return a duration as options take it: `10m`, `90s`."""
    seconds = int(duration.total_seconds())
    return f"{seconds}s" if seconds % 60 else f"{seconds // 60}m"


def table(rows: "Sequence[dict[str, object]]") -> str:
    """Return rows as a table, as kubectl prints it."""
    titles = [key.upper() if key != "created" else "AGE" for key in rows[0]]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = [
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (titles, *cells)
    ]
    return "\n".join(lines)


def _cell(key: str, value: object) -> str:
    if key == "created":
        return age(str(value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
