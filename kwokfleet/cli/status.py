"""`kwokfleet get` and `kwokfleet status`: managed objects in the cluster, compared with the files."""

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, diff, files, output, session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kwokfleet.kube import client
    from kwokfleet.kube.observed import Observed

_START_DAEMON = "start a daemon: kwokfleet run"

ListedKind = Literal["fleets", "pools", "nodes", "stages", "waves", "runs"]

TableFormat = Literal["table", "json", "name"]


Form = Annotated[TableFormat, typer.Option("--output", "-o", help="Output format.")]


def get(
    kind: Annotated[ListedKind, typer.Argument(help="What to list.")] = "pools",
    fleet: session.Fleet = None,
    form: Form = "table",
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """List managed objects in the cluster. Needs no fleet files."""
    api = connection.connect(context, kubeconfig)
    if kind in ("waves", "runs"):
        _print(_list_runs(api, kind, fleet), form, f"no {kind} in this cluster; {_START_DAEMON}")
        return
    with connection.run_informer(api) as managed:
        view = connection.wait_until_listed(managed)
    observed = [item for item in view.objects.values() if not fleet or item.fleet in fleet]
    from kwokfleet.daemon import listing

    _print(listing.LISTS[kind](observed), form, f"no {kind} of kwokfleet in this cluster")


def _list_runs(api: "client.KubeClient", kind: ListedKind, fleet: list[str] | None) -> list[dict[str, object]]:
    from kwokfleet.daemon import overview
    from kwokfleet.reconcile import cluster_state

    fleets = [item for item in cluster_state.list_fleets(api) if not fleet or item["metadata"]["name"] in fleet]
    return list(overview.waves(fleets) if kind == "waves" else overview.runs(fleets))


def status(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    fleet: session.Fleet = None,
    form: Form = "table",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch the status of all fleets in the cluster until Ctrl-C.")
    ] = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Compare each pool with the cluster: desired, existing, Ready and schedulable nodes, and differences.

    Exits with 1 unless the cluster matches the files and all nodes are Ready. --watch reads no files: it shows the
    status that the daemon or the last sync has written, and the current nodes.
    """
    if watch:
        _check_watch_options(path, form)
        from kwokfleet.cli import status_watch

        status_watch.watch(fleet, context, kubeconfig)
    options = session.sync_options(fleet, no_prune=False)
    plan, loaded, view, policies = diff.live_plan(path or files.default_path(), context, kubeconfig, options)
    session.require_known_fleets(fleet, loaded, plan)
    nodes: dict[tuple[str, str], list[Observed]] = {}
    for observed in view.objects.values():
        if observed.key.kind == "Node":
            nodes.setdefault((observed.fleet, observed.pool), []).append(observed)
    sizes = {(name, pool): rule.size for name, policy in policies.items() for pool, rule in policy.pools.items()}
    changes: dict[tuple[str, str], int] = {}
    for change in (*plan.changes, *(change for held in plan.withheld for change in held.changes)):
        changes[change.fleet, change.pool] = changes.get((change.fleet, change.pool), 0) + 1
    rows = [
        {
            "fleet": name[0] or "(shared)",
            "pool": name[1] or "-",
            "desired": sizes.get(name, 0),
            "nodes": len(nodes.get(name, ())),
            "ready": sum(node.ready for node in nodes.get(name, ())),
            "schedulable": sum(node.schedulable for node in nodes.get(name, ())),
            "differences": changes.get(name, 0),
        }
        for name in sorted({*sizes, *nodes, *changes})
        if not fleet or name[0] in fleet
    ]
    _print(rows, form, "neither the files nor the cluster have pools")
    if form == "table":
        diff.print_withheld(plan.withheld)
    settled = plan.empty and loaded.usable and all(row["ready"] == row["desired"] == row["nodes"] for row in rows)
    raise typer.Exit(errors.ExitCode.DONE if settled else errors.ExitCode.NO)


def _check_watch_options(path: "Path | None", form: TableFormat) -> None:
    if path is not None:
        raise errors.InputError(
            "status --watch reads no files: it shows the status in the cluster",
            hint=f"omit {path}; for one fleet: --fleet NAME",
        )
    if form != "table":
        raise errors.InputError(
            f"status --watch does not support --output {form}",
            hint="for programs: GET /api/v1/events of the daemon, or kubectl get fleets --watch -o json",
        )


def _print(rows: "Sequence[dict[str, object]]", form: TableFormat, empty_message: str) -> None:
    if form == "json":
        typer.echo(json.dumps(rows, indent=2))
    elif form == "name":
        for row in rows:
            parts = (str(row[key]) for key in ("fleet", "pool", "wave", "run") if key in row)
            typer.echo(str(row.get("name") or "/".join(parts)))
    elif rows:
        typer.echo(output.table(rows))
    else:
        output.print_line(empty_message)
