"""The `kwokfleet` program: global options, and the mapping of errors to messages and exit codes."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

import kwokfleet
from kwokfleet import errors, settings
from kwokfleet.cli import (
    cluster,
    control,
    diff,
    files,
    install,
    kwok,
    learn,
    output,
    render,
    report,
    run,
    signals,
    status,
    sync,
    test,
    uninstall,
    wave,
)

_IS_PLUGIN = "kubectl-kwokfleet" in os.path.basename(sys.argv[0])  # noqa: PTH119 - pathlib would slow down the start

app = typer.Typer(
    name="kwokfleet",
    add_completion=not _IS_PLUGIN,  # the shell completes `kubectl` itself
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    rich_markup_mode=None,  # drawing boxes takes longer than the rest of --help
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "init": files.init, "validate": files.validate, "schema": files.schema, "fmt": files.format_files,
    "render": render.render, "diff": diff.diff, "sync": sync.sync, "delete": sync.delete,
    "approve": control.approve, "suspend": control.suspend, "resume": control.resume,
    "get": status.get, "status": status.status, "run": run.run, "up": run.up, "test": test.run_test,
    "learn": learn.learn, "install": install.install, "uninstall": uninstall.uninstall,
}  # fmt: skip
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
for _name, _group in {"wave": wave, "report": report, "kwok": kwok, "cluster": cluster}.items():
    app.add_typer(_group.app, name=_name)


def _print_version(*, requested: bool) -> None:
    if requested:
        typer.echo(f"kwokfleet {kwokfleet.__version__}")
        raise typer.Exit


@app.callback()
def root(
    log_level: Annotated[
        settings.LogLevel | None, typer.Option(help="Lowest level to log. [env: KWOKFLEET_LOG_LEVEL, else info]")
    ] = None,
    log_format: Annotated[
        settings.LogFormat | None,
        typer.Option(help="Log format; auto: console on a terminal, else JSON. [env: KWOKFLEET_LOG_FORMAT, else auto]"),
    ] = None,
    version: Annotated[  # noqa: ARG001 - read by its callback
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _print_version(requested=value),
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Keep fleets of simulated Kubernetes nodes in sync with the files that declare them."""
    output.set_log_options(log_level, log_format)


def main() -> NoReturn:
    """Run the command line; exit with a code of `errors.ExitCode`."""
    settings.disable_pydantic_plugins()  # commands import pydantic, so this comes first
    signals.install_handlers()
    if sys.stdout is None:  # the shell closed it: `kwokfleet render >&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - open until exit
    try:
        app(prog_name="kubectl kwokfleet" if _IS_PLUGIN else "kwokfleet")
    except errors.KwokfleetError as exc:
        output.print_error(exc)
        sys.exit(exc.exit_code)
    except signals.Stopped as exc:
        output.print_line(exc.args[0])
        sys.exit(exc.exit_code)
    except OSError as exc:  # a full disk, or a folder without read permission
        output.print_error(errors.HostError(f"{exc.filename or 'input or output'}: {exc.strerror or exc}"))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes standard output at exit, and would fail again
        sys.exit(errors.ExitCode.HOST)
    except Exception as exc:  # noqa: BLE001 - a bug has an exit code, too
        output.print_bug(exc)
        sys.exit(errors.ExitCode.BUG)
    sys.exit(errors.ExitCode.DONE)
