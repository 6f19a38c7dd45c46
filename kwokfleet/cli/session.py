"""What diff, sync, status and delete share: options, files that were loaded aloud, and a cluster that is followed."""

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
    list[str] | None,
    typer.Option(help="Only this Fleet; may be repeated.", show_default=False, autocompletion=render.fleet_names),
]
NoPrune = Annotated[
    bool,
    typer.Option("--no-prune", help="Delete nothing: neither what is no longer in the files nor what is too many."),
]
Details = Annotated[bool, typer.Option("--details", "-d", help="Each object and each field, not only the groups.")]


def sync_options(
    fleet: list[str] | None, *, no_prune: bool, approved: list[str] | None = None
) -> "reconciler.ReconcileOptions":
    """Return what somebody decided on the command line."""
    from kwokfleet.reconcile import reconciler

    only = frozenset(fleet) | {""} if fleet else None
    return reconciler.ReconcileOptions(not no_prune, only, frozenset(approved or ()))


@contextmanager
def open_session(
    context: str | None,
    kubeconfig: Path | None,
    options: "reconciler.ReconcileOptions",
    limits: "throttled_client.ClientLimits",
) -> "Iterator[sync.Sync]":
    """Connect, and follow our objects; whatever ends the block, ends all that it began."""
    from kwokfleet import app

    api = connection.connected(context, kubeconfig)
    with connection.following(api) as follower, app.one_shot_sync(api, follower, options, limits) as session:
        yield session


def load_files(
    where: Path, live_nodes: "Callable[[str | None], list[Manifest]]", *, stable: bool = False
) -> "loader.Loaded":
    """Load files; say what is wrong with them, and go on with what is right."""
    from kwokfleet.source import loader

    loaded = loader.Loader(live_nodes).load(where, stable=stable)
    for problem in loaded.problems:
        output.print_line(files.problem_line(problem))
    if not loaded.snapshot.files:
        raise errors.InputError(
            f"there is no fleet file in {where} that can be read: nothing was changed",
            hint="an empty source is never taken for a wish; to remove a fleet: kwokfleet delete FLEET",
        )
    return loaded


def require_known_fleets(fleet: list[str] | None, loaded: "loader.Loaded", made: "Plan") -> None:
    """Refuse the name of a Fleet that neither the files nor the cluster know."""
    from kwokfleet.documents import problems

    known = {each.name for each in loaded.tree.fleets} | set(loaded.broken)
    known |= {change.fleet for change in made.changes} | {each.fleet for each in made.withheld} - {""}
    for name in fleet or ():
        if name not in known:
            raise errors.InputError(f"there is no Fleet {name!r}", hint=problems.suggestion(name, sorted(known)))


def print_missing_kinds(view: "informer.CacheView", kinds: "AbstractSet[str]") -> None:
    """Say what of the cluster is not known; kwok's other kinds are nobody's concern unless the files need them."""
    from kwokfleet.kube import requests

    if kinds & view.missing:
        output.print_line("note: the cluster does not know kwok's kinds yet; sync installs their definitions")
    optional = {each.kind for each in requests.KWOK_KINDS} - kinds
    for kind, why in view.unknown.items():
        if kind not in optional:
            output.print_line(f"note: {why}")


def keep_suspended(session: "sync.Sync", loaded: "loader.Loaded") -> "loader.Loaded":
    """Return what is loaded, as the daemon would take it: what was suspended in the cluster stays as it is."""
    from kwokfleet.reconcile import cluster_state, fleet_status, reconciler

    try:
        found = cluster_state.list_fleets(session.sender)
    except errors.ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        output.print_line(f"note: {error}: whether somebody suspended a fleet is not known")
        return loaded
    return reconciler.with_suspended(loaded, fleet_status.suspended_fleets(found))


def kwok_kinds(loaded: "loader.Loaded") -> "AbstractSet[str]":
    """Return the kinds of kwok's that the cluster must know for these files."""
    from kwokfleet.render import desired

    return desired.cluster_kinds(loaded.tree)
