"""`kwokfleet get` and `kwokfleet status`: what of ours is in the cluster, and whether it is as the files say."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, diff, files, output, session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kwokfleet.kube import client
    from kwokfleet.kube.observed import Observed

_PLAYED = "kwokfleet run plays them"


class ListedKind(StrEnum):
    """What can be listed."""

    FLEETS = "fleets"
    POOLS = "pools"
    NODES = "nodes"
    STAGES = "stages"
    WAVES = "waves"
    RUNS = "runs"


class TableFormat(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


Form = Annotated[TableFormat, typer.Option("--output", "-o", help="How to print it.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command()(get)
    app.command()(status)


def get(
    thing: Annotated[ListedKind, typer.Argument(help="What to list.")] = ListedKind.POOLS,
    fleet: session.Fleet = None,
    form: Form = TableFormat.TABLE,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """List what of ours is in the cluster: fleets, pools, nodes, stages; waves and their runs. Needs no files."""
    api = connection.connect(context, kubeconfig)
    if thing in (ListedKind.WAVES, ListedKind.RUNS):
        _print(_played(api, thing, fleet), form, f"no daemon has played {thing} in this cluster: {_PLAYED}")
        return
    with connection.run_informer(api) as follower:
        view = connection.wait_until_listed(follower)
    found = [each for each in view.objects.values() if not fleet or each.fleet in fleet]
    from kwokfleet.daemon import listing

    _print(listing.LISTS[thing.value](found), form, f"there are no {thing} of ours in this cluster")


def _played(api: "client.KubeClient", thing: ListedKind, fleet: list[str] | None) -> list[dict[str, object]]:
    from kwokfleet.daemon import overview
    from kwokfleet.reconcile import cluster_state

    found = [each for each in cluster_state.list_fleets(api) if not fleet or each["metadata"]["name"] in fleet]
    return list(overview.waves(found) if thing is ListedKind.WAVES else overview.runs(found))


def status(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    fleet: session.Fleet = None,
    form: Form = TableFormat.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow how all fleets stand in the cluster, until Ctrl-C.")
    ] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show each pool of the files beside the cluster: wanted, there, Ready, schedulable, and what differs.

    Exit code 1 unless everything is as the files say and Ready. With --watch no files are read: it shows what
    the daemon or the last sync has told the cluster, and the nodes as they are now.
    """
    if watch:
        _refuse_beside_watch(path, form)
        from kwokfleet.cli import status_watch

        status_watch.watch(fleet, context, kubeconfig)
    made, loaded, inventory, rules = diff.compare_with_cluster(path or files.default_path(), context, kubeconfig, fleet)
    there: dict[tuple[str, str], list[Observed]] = {}
    for each in inventory.values():
        if each.key.kind == "Node":
            there.setdefault((each.fleet, each.pool), []).append(each)
    sizes = {(name, pool): rule.size for name, each in rules.items() for pool, rule in each.pools.items()}
    changes: dict[tuple[str, str], int] = {}
    for change in (*made.changes, *(change for each in made.withheld for change in each.changes)):
        changes[change.fleet, change.pool] = changes.get((change.fleet, change.pool), 0) + 1
    rows = [
        {
            "fleet": name[0] or "(shared)",
            "pool": name[1] or "-",
            "desired": sizes.get(name, 0),
            "nodes": len(there.get(name, ())),
            "ready": sum(each.ready for each in there.get(name, ())),
            "schedulable": sum(each.schedulable for each in there.get(name, ())),
            "differences": changes.get(name, 0),
        }
        for name in sorted({*sizes, *there, *changes})
        if not fleet or name[0] in fleet
    ]
    _print(rows, form, "there is nothing in the files and nothing of ours in the cluster")
    if form is TableFormat.TABLE:
        from kwokfleet.cli import plan_view

        for held in made.withheld:
            for line in plan_view.withheld(held):
                output.print_line(line)
    settled = made.empty and loaded.usable and all(row["ready"] == row["desired"] == row["nodes"] for row in rows)
    raise typer.Exit(errors.ExitCode.DONE if settled else errors.ExitCode.NO)


def _refuse_beside_watch(path: "Path | None", form: TableFormat) -> None:
    if path is not None:
        raise errors.InputError(
            "status --watch reads no files: it follows what the cluster is told of its fleets",
            hint=f"leave {path} out; one fleet alone: --fleet NAME",
        )
    if form is not TableFormat.TABLE:
        raise errors.InputError(
            f"status --watch cannot print {form}",
            hint="for programs: GET /api/v1/events of the daemon, or kubectl get fleets --watch -o json",
        )


def _print(rows: "Sequence[dict[str, object]]", form: TableFormat, nothing: str) -> None:
    if form is TableFormat.JSON:
        typer.echo(json.dumps(rows, indent=2))
    elif form is TableFormat.NAME:
        for row in rows:
            typer.echo(
                str(
                    row.get("name") or "/".join(str(row[key]) for key in ("fleet", "pool", "wave", "run") if key in row)
                )
            )
    elif rows:
        typer.echo(output.table(rows))
    else:
        output.print_line(nothing)
