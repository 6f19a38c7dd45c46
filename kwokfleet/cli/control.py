"""`kwokfleet approve`, `suspend` and `resume`: annotations on a Fleet, which the daemon and sync obey."""

from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, output, render

if TYPE_CHECKING:
    from pathlib import Path

FleetName = Annotated[
    str | None, typer.Argument(metavar="FLEET", help="Name of the Fleet.", autocompletion=render.fleet_names)
]


def approve(
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help="Digest of the plan, as diff and sync print it.")],
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Approve one withheld plan. The daemon or the next sync applies it if it has not changed."""
    from kwokfleet.kube import objects
    from kwokfleet.reconcile import cluster_state, status_writer

    api = connection.connect(context, kubeconfig)
    withheld_plans = [
        (fleet["metadata"]["name"], plan)
        for fleet in cluster_state.list_fleets(api)
        for plan in (fleet.get("status") or {}).get("withheld") or ()
        if plan.get("digest")
    ]
    chosen = next((pair for pair in withheld_plans if pair[1]["digest"] == digest), None)
    if chosen is None:
        known = ", ".join(f"{plan['digest']} ({name})" for name, plan in withheld_plans) or "none"
        raise errors.InputError(
            f"no withheld plan has the digest {digest!r}; withheld plans: {known}",
            hint="run kwokfleet sync: it prints the digests of withheld plans",
        )
    name, plan = chosen
    status_writer.annotate(api, name, {objects.APPROVED: digest})
    typer.echo(f"approved for fleet {name}: {plan['why']}")
    output.print_line(f"next: a running daemon applies the plan at once; without one: {output.program()} sync")


def suspend(
    fleet: FleetName = None, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Suspend a Fleet: neither the daemon nor sync changes it, and its waves pause.

    The suspension lasts until `kwokfleet resume`. In a fleet file, write `suspend: true`.
    """
    name = _set_suspended(fleet, "suspend", context, kubeconfig)
    typer.echo(f"fleet {name} is suspended; to resume it: {output.program()} resume {name}")


def resume(
    fleet: FleetName = None, context: connection.Context = None, kubeconfig: connection.Kubeconfig = None
) -> None:
    """Resume a suspended Fleet."""
    typer.echo(f"fleet {_set_suspended(fleet, 'resume', context, kubeconfig)} is resumed")


def _set_suspended(fleet: str | None, command: str, context: str | None, kubeconfig: "Path | None") -> str:
    """Add or remove the suspension of a Fleet; return its name."""
    from kwokfleet.kube import objects
    from kwokfleet.reconcile import status_writer

    if not fleet:
        raise errors.InputError(
            f"the name of the Fleet to {command} is missing",
            hint=f"{output.program()} {command} FLEET (kubectl get fleets lists them); "
            f"for all fleets of a daemon: POST /api/v1/{command} to its HTTP API",
        )
    value = "true" if command == "suspend" else None
    status_writer.annotate(connection.connect(context, kubeconfig), fleet, {objects.SUSPEND: value})
    return fleet
