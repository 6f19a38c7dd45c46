"""Shared by diff, sync, status and delete: options, loading of files, and the connection to the cluster."""

from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, files, output, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from kwokfleet.kube import throttled_client
    from kwokfleet.kube.informer import informer
    from kwokfleet.kube.objects import Manifest
    from kwokfleet.reconcile import reconciler, sync
    from kwokfleet.reconcile.changes import Plan
    from kwokfleet.source import loader

Fleet = Annotated[
    list[str] | None, typer.Option(help="Only this Fleet. May be repeated.", autocompletion=render.fleet_names)
]
NoPrune = Annotated[
    bool,
    typer.Option(
        "--no-prune", help="Delete nothing: neither objects that were removed from the files nor surplus nodes."
    ),
]
Details = Annotated[
    bool, typer.Option("--details", "-d", help="Show every object and field, not only a summary per pool.")
]


def sync_options(
    fleet: list[str] | None, *, no_prune: bool, approved: list[str] | None = None
) -> "reconciler.ReconcileOptions":
    """Return the planner options of a command line."""
    from kwokfleet.reconcile import reconciler

    only = frozenset(fleet) | {""} if fleet else None
    return reconciler.ReconcileOptions(not no_prune, only, frozenset(approved or ()))


@contextmanager
def open_session(
    context: str | None,
    kubeconfig: Path | None,
    options: "reconciler.ReconcileOptions",
    limits: "throttled_client.ClientLimits | None" = None,
) -> "Iterator[sync.Sync]":
    """Connect and watch managed objects until the block ends."""
    from kwokfleet import app
    from kwokfleet.kube import throttled_client

    api, limits = connection.connect(context, kubeconfig), limits or throttled_client.ClientLimits()
    with connection.run_informer(api) as managed, app.one_shot_sync(api, managed, options, limits) as syncer:
        yield syncer


@contextmanager
def open_deletion(
    fleet: str,
    context: str | None,
    kubeconfig: Path | None,
    limits: "throttled_client.ClientLimits | None" = None,
) -> "Iterator[tuple[sync.Sync, informer.CacheView]]":
    """Open a session that deletes one Fleet: its plan for an empty tree."""
    from kwokfleet.reconcile import reconciler

    options = reconciler.ReconcileOptions(only=frozenset({fleet, ""}), budget=False)
    with open_session(context, kubeconfig, options, limits) as syncer:
        view = connection.wait_until_listed(syncer.informer)
        if {observed.fleet for observed in view.objects.values()} - {fleet, ""}:
            syncer.limit_to({fleet})  # other Fleets still need shared objects
        yield syncer, view


def load_files(
    where: Path, live_nodes: "Callable[[str | None], list[Manifest]]", *, stable: bool = False
) -> "loader.Loaded":
    """Load files and print their problems; raise if there is no file at all."""
    from kwokfleet.source import loader

    loaded = loader.Loader(live_nodes).load(where, stable=stable)
    output.print_lines(map(files.problem_line, loaded.problems))
    if not loaded.snapshot.files:
        raise errors.InputError(
            f"no readable fleet file in {where}; nothing was changed",
            hint="an empty folder does not delete fleets; to delete one: kwokfleet delete FLEET",
        )
    return loaded


def require_known_fleets(fleet: list[str] | None, loaded: "loader.Loaded", plan: "Plan") -> None:
    """Raise if a Fleet is neither in the files nor in the cluster."""
    from kwokfleet.documents import problems

    known = {declared.name for declared in loaded.tree.fleets} | set(loaded.broken)
    known |= {change.fleet for change in plan.changes} | {held.fleet for held in plan.withheld} - {""}
    for name in fleet or ():
        if name not in known:
            raise errors.InputError(f"Fleet {name!r} not found", hint=problems.suggestion(name, sorted(known)))


def print_missing_kinds(view: "informer.CacheView", kinds: "AbstractSet[str]") -> None:
    """Print which kinds cannot be listed; kwok's kinds only if the files need them."""
    from kwokfleet.kube import requests

    if kinds & view.missing:
        output.print_line("note: the cluster has no CRDs of kwok yet; sync installs them")
    optional = {kind.kind for kind in requests.KWOK_KINDS} - kinds
    for kind, reason in view.unknown.items():
        if kind not in optional:
            output.print_line(f"note: {reason}")


def load_with_suspensions(syncer: "sync.Sync", where: Path, *, stable: bool = False) -> "loader.Loaded":
    """Load files; Fleets that are suspended in the cluster are suspended in the result."""
    from kwokfleet.reconcile import cluster_state, fleet_status, reconciler

    loaded = load_files(where, render.live_nodes(None, syncer.sender), stable=stable)
    try:
        fleets = cluster_state.list_fleets(syncer.sender)
    except errors.ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        output.print_line(f"note: {error}; suspended fleets are unknown")
        return loaded
    return reconciler.with_suspended(loaded, fleet_status.suspended_fleets(fleets))
