"""`kwokfleet wave`: commands for Runs, written to the Fleet in the cluster; the leading daemon executes them."""

from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, output, render

if TYPE_CHECKING:
    from pathlib import Path

    from kwokfleet.kube.objects import Manifest

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start, cancel or retry runs of a wave. `kwokfleet get runs` lists them.",
)
FleetName = Annotated[
    str, typer.Argument(metavar="FLEET", help="Name of the Fleet.", autocompletion=render.fleet_names)
]
WaveName = Annotated[str, typer.Argument(metavar="WAVE", help="Name of the wave.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, as in `kwokfleet get runs`.")]


@app.command()
def cancel(
    fleet: FleetName,
    wave: WaveName,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Name of the run; default: all active runs.")] = "",
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Cancel a run: no more objects are submitted. Existing objects stay, unless the wave has a `cleanup`."""
    _submit("cancel", (fleet, wave, run), context, kubeconfig)
    typer.echo(f"run {run} of wave {wave} is cancelled" if run else f"all active runs of wave {wave} are cancelled")


@app.command()
def retry(
    fleet: FleetName,
    wave: WaveName,
    run: RunName,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Submit the rejected objects of a run again; a cancelled run continues."""
    _submit("retry", (fleet, wave, run), context, kubeconfig)
    typer.echo(f"run {run} of wave {wave} continues")


@app.command()
def run(
    fleet: FleetName, wave: WaveName, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Start a run of a wave now, independent of its schedule."""
    number = _submit("run", (fleet, wave, ""), context, kubeconfig)
    typer.echo(f"run m{number} of wave {wave} starts")
    output.print_line(f"next: {output.program()} get runs")


def _submit(action: str, target: tuple[str, str, str], context: str | None, kubeconfig: "Path | None") -> int:
    """Write a run command to a Fleet; return its number."""
    from kwokfleet.reconcile import status_writer
    from kwokfleet.waves.run_commands import RunAction

    fleet, wave, run = target
    api = connection.connect(context, kubeconfig)
    return status_writer.submit_run_command(
        api, fleet, RunAction(action), wave, run, check=lambda manifest: _require_run(manifest, wave, run)
    )


def _require_run(manifest: "Manifest", wave: str, run: str) -> None:
    """Raise if the Fleet has no such wave or run."""
    waves = {status["name"]: status for status in (manifest.get("status") or {}).get("waves") or ()}
    if wave not in waves:
        raise errors.InputError(
            f"wave {wave!r} not found in the status of this fleet; waves: {', '.join(sorted(waves)) or 'none'}",
            hint=f"list them: {output.program()} get waves; a daemon must run: {output.program()} run",
        )
    runs = [str(status.get("name")) for status in waves[wave].get("runs") or ()]
    if run and run not in runs:
        raise errors.InputError(
            f"wave {wave} has no run {run!r}; runs: {', '.join(runs) or 'none'}",
            hint=f"list them: {output.program()} get runs",
        )
