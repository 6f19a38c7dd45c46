"""A cluster that is not ours alone, left as it was found: what a test needs of it before, and removes from it after."""

from pathlib import Path
from typing import TYPE_CHECKING

from kwokfleet import errors
from kwokfleet.cli import connection, output, sessions

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from kwokfleet import daemon


def refuse_known(names: "AbstractSet[str]", context: str | None, kubeconfig: Path | None) -> None:
    """Refuse Fleets that the cluster knows: their Runs have been, and nobody asked to remove what is theirs."""
    from kwokfleet import world
    from kwokfleet.core import trial

    api = connection.connected(context, kubeconfig)
    try:
        known = sorted(each["metadata"]["name"] for each in world.fleets(api) if each["metadata"]["name"] in names)
    finally:
        api.close()
    if known:
        raise errors.InputError(
            f"this cluster has a fleet {trial.some(known)} already: its waves would not be played again",
            hint=f"kwokfleet delete {known[0]}, or test on a cluster of its own: without --kubeconfig",
        )


def sweep(made: "daemon.Daemon", names: "AbstractSet[str]", context: str | None, kubeconfig: Path | None) -> None:
    """Remove Fleets while their kwok still runs: it lets pods go. The daemon only looks on meanwhile."""
    from kwokfleet import apply, reconcile, source

    made.suspended = True
    made.runs.stop()
    for name in sorted(names):
        ordered = reconcile.Options(only=frozenset({name, ""}), budget=False)
        with sessions.opened(context, kubeconfig, ordered, apply.Limits()) as session:
            view = connection.known(session.mirror)
            if {each.fleet for each in view.objects.values()} - {name, ""}:
                session.limit_to({name})
            nothing = source.nothing()
            done = session.carry_out(nothing, session.plan(nothing))
            left = len(done.left.changes) + sum(len(each.changes) for each in done.left.withheld)
            session.forget(name)
        output.print_line(
            f"fleet {name} is gone" if not left else f"fleet {name}: {left} objects stay; see kwokfleet delete {name}"
        )
