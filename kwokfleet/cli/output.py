"""What people see: results on standard output, everything else on standard error."""

import os
import sys
import traceback
from typing import TYPE_CHECKING

import typer

from kwokfleet import errors, settings

if TYPE_CHECKING:
    from rich.console import Console


def read_settings() -> settings.Settings:
    """Read the settings from this process's environment."""
    return settings.from_environment(os.environ)


def console(*, stderr: bool = False) -> "Console":
    """Make a console that honours NO_COLOR and, in a pipe, never wraps or truncates."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    return Console(stderr=stderr, width=width, highlight=False, emoji=False)


def print_line(text: str) -> None:
    """Say something that is not a result."""
    typer.echo(text, err=True)


def print_error(error: errors.KwokfleetError) -> None:
    """Say what went wrong, and what to do next."""
    _labelled("error", str(error), typer.colors.RED)
    if error.hint:
        _labelled(" next", error.hint, typer.colors.CYAN)


def print_bug(error: Exception) -> None:
    """Say that this is our fault, with everything a report needs."""
    print_line("".join(traceback.format_exception(error)))
    _labelled("error", f"a bug in kwokfleet: {type(error).__name__}: {error}", typer.colors.RED)
    _labelled(" next", "please report it, with the lines above and the command you ran", typer.colors.CYAN)


def _labelled(label: str, text: str, color: str) -> None:
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print_line((typer.style(f"{label}:", fg=color, bold=True) if coloured else f"{label}:") + f" {text}")
