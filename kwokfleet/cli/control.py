"""`kwokfleet approve`, `suspend` and `resume`: words to whoever syncs, written on the Fleet in the cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, output, render

if TYPE_CHECKING:
    from pathlib import Path

FleetName = Annotated[str | None, typer.Argument(metavar="FLEET", help="The Fleet.", autocompletion=render.fleet_names)]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (approve, suspend, resume):
        app.command()(command)


def approve(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="What diff or sync printed beside the plan.")],
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Let exactly one withheld plan through: the daemon or the next sync carries it out, if it is still the same."""
    from kwokfleet.kube import objects
    from kwokfleet.reconcile import cluster_state, status_writer

    api = connection.connected(context, kubeconfig)
    waiting = [
        (fleet["metadata"]["name"], each)
        for fleet in cluster_state.list_fleets(api)
        for each in (fleet.get("status") or {}).get("withheld") or ()
        if each.get("digest")
    ]
    chosen = next((pair for pair in waiting if pair[1]["digest"] == digest), None)
    if chosen is None:
        known = ", ".join(f"{each['digest']} ({name})" for name, each in waiting) or "none"
        raise errors.InputError(
            f"no withheld plan has the digest {digest!r}; waiting: {known}",
            hint="run kwokfleet sync: it prints the digest of what it withholds",
        )
    name, each = chosen
    status_writer.annotate(api, name, {objects.APPROVED: digest})
    typer.echo(f"approved for fleet {name}: {each['why']}")
    output.print_line(
        f"next: a running daemon carries it out at once, or {output.program()} sync, if it is still the same plan"
    )


def suspend(
    fleet: FleetName = None, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Leave a Fleet as it is: neither the daemon nor sync changes anything of it, and its waves pause.

    It holds until `resume`, whoever leads by then. In a file the same is `suspend: true`.
    """
    name = _named(fleet, "suspend")
    _marked(name, "true", context, kubeconfig)
    typer.echo(f"fleet {name} is suspended: it stays as it is until {output.program()} resume {name}")


def resume(
    fleet: FleetName = None, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Go on with a Fleet that `suspend` left as it is."""
    name = _named(fleet, "resume")
    _marked(name, None, context, kubeconfig)
    typer.echo(f"fleet {name} is resumed")


def _named(fleet: str | None, command: str) -> str:
    if not fleet:
        raise errors.InputError(
            f"{command} which Fleet?",
            hint=f"name one: {output.program()} {command} FLEET (kubectl get fleets lists them); "
            f"everything that a daemon does: POST /api/v1/{command} on its HTTP side",
        )
    return fleet


def _marked(fleet: str, suspended: str | None, context: str | None, kubeconfig: "Path | None") -> None:
    from kwokfleet.kube import objects
    from kwokfleet.reconcile import status_writer

    status_writer.annotate(connection.connected(context, kubeconfig), fleet, {objects.SUSPEND: suspended})
