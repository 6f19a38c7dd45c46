"""The `kwokfleet` program: global options, and how errors become sentences and exit codes."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

import kwokfleet
from kwokfleet import errors, settings
from kwokfleet.cli import cluster, output

app = typer.Typer(
    name="kwokfleet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,  # drawing boxes around the help takes longer than everything else in it
)
app.add_typer(cluster.app, name="cluster")


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal or the connection was closed."""


class Stopped(BaseException):
    """A signal asked this process to stop. Not an Exception: nothing but clean-up may catch it."""

    def __init__(self, exit_code: errors.ExitCode) -> None:
        super().__init__(exit_code.name.lower())
        self.exit_code = exit_code


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"kwokfleet {kwokfleet.__version__}")
        raise typer.Exit


@app.callback()
def root(
    log_level: Annotated[
        settings.LogLevel | None,
        typer.Option(help="How much to log. [env: KWOKFLEET_LOG_LEVEL, else info]", show_default=False),
    ] = None,
    log_format: Annotated[
        settings.LogFormat | None,
        typer.Option(
            help="How a log line looks; auto: console on a terminal, else JSON. [env: KWOKFLEET_LOG_FORMAT, else auto]",
            show_default=False,
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - read by its callback
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _print_version(wanted=value),
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Keep a simulated Kubernetes fleet equal to the files that declare it."""
    output.remember_log_options(log_level, log_format)


def main() -> NoReturn:
    """Run the command line and exit with the code that `errors.ExitCode` lists."""
    for number in _STOPPING:
        signal.signal(number, _stop)
    try:
        app(prog_name=_program_name())
    except errors.KwokfleetError as exc:
        output.print_error(exc)
        sys.exit(exc.exit_code)
    except Stopped as exc:
        output.print_line(exc.args[0])
        sys.exit(exc.exit_code)
    except Exception as exc:  # noqa: BLE001 - the last resort: a bug gets its own exit code
        output.print_bug(exc)
        sys.exit(errors.ExitCode.BUG)
    sys.exit(errors.ExitCode.DONE)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    for each in _STOPPING:  # once is enough: an impatient second Ctrl-C must not stop the clean-up
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(errors.ExitCode.INTERRUPTED if number == signal.SIGINT else errors.ExitCode.TERMINATED)


def _program_name() -> str:
    """`kubectl kwokfleet` when kubectl runs us as its plug-in."""
    return "kubectl kwokfleet" if "kubectl-kwokfleet" in os.path.basename(sys.argv[0]) else "kwokfleet"  # noqa: PTH119 - pathlib is not worth its import here
