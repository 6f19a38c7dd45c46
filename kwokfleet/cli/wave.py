"""`kwokfleet wave`: words to the daemon about Runs, written on the Fleet in the cluster; whoever leads heeds them."""

from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, output, render

if TYPE_CHECKING:
    from pathlib import Path

    from kwokfleet.kube.objects import Manifest
    from kwokfleet.waves.run_commands import RunAction

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start, cancel or retry the runs of a wave; kwokfleet get runs lists them.",
)
FleetName = Annotated[str, typer.Argument(metavar="FLEET", help="The Fleet.", autocompletion=render.fleet_names)]
WaveName = Annotated[str, typer.Argument(metavar="WAVE", help="The wave.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run, as `kwokfleet get runs` names it.")]


@app.command()
def cancel(
    fleet: FleetName,
    wave: WaveName,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="The run; without it, all that go on.")] = "",
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Leave off a run: nothing more of it is submitted. What is there stays, unless the wave has a `cleanup`."""
    from kwokfleet.waves.run_commands import RunAction

    _ordered(RunAction.CANCEL, (fleet, wave, run), context, kubeconfig)
    typer.echo(f"run {run} of wave {wave} is cancelled" if run else f"wave {wave}: all runs that go on are cancelled")


@app.command()
def retry(
    fleet: FleetName,
    wave: WaveName,
    run: RunName,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Submit once more what was refused of a run; one that was cancelled goes on where it was."""
    from kwokfleet.waves.run_commands import RunAction

    _ordered(RunAction.RETRY, (fleet, wave, run), context, kubeconfig)
    typer.echo(f"run {run} of wave {wave} goes on")


@app.command()
def run(
    fleet: FleetName,
    wave: WaveName,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Start a run of a wave now, whatever its schedule says."""
    from kwokfleet.waves.run_commands import RunAction

    number = _ordered(RunAction.RUN, (fleet, wave, ""), context, kubeconfig)
    typer.echo(f"run m{number} of wave {wave} begins")
    output.print_line(f"next: {output.program()} get runs")


def _ordered(what: "RunAction", about: tuple[str, str, str], context: str | None, kubeconfig: "Path | None") -> int:
    """Write an order onto a Fleet; return its number."""
    from kwokfleet.reconcile import status_writer

    fleet, wave, run = about
    api = connection.connect(context, kubeconfig)
    return status_writer.submit_run_command(api, fleet, what, wave, run, check=lambda there: _check(there, wave, run))


def _check(there: "Manifest", wave: str, run: str) -> None:
    """Refuse what cannot be meant, as long as somebody is there to read why."""
    waves = {each["name"]: each for each in (there.get("status") or {}).get("waves") or ()}
    if wave not in waves:
        raise errors.InputError(
            f"no daemon has seen a wave {wave!r} of this fleet; there are: {', '.join(sorted(waves)) or 'none'}",
            hint=f"see {output.program()} get waves; {output.program()} run plays them",
        )
    runs = [str(each.get("name")) for each in waves[wave].get("runs") or ()]
    if run and run not in runs:
        raise errors.InputError(
            f"wave {wave} has no run {run!r}; there are: {', '.join(runs) or 'none'}",
            hint=f"see {output.program()} get runs",
        )
