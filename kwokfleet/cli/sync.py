"""`kwokfleet sync` and `delete`: change what `diff` shows, exactly that."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, diff, files, output, render, session

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from kwokfleet.reconcile.changes import Plan
    from kwokfleet.reconcile.sync import Sync, SyncReport
    from kwokfleet.source import loader

_GO_ON = "what was done stays, and another sync goes on from there"


WAIT_TIMEOUT = output.duration_text(settings.WAIT_TIMEOUT)


class DryRun(StrEnum):
    """How far `sync` goes."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is deleted.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all nodes are Ready and schedulable.")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait, as in 90s or 5m.")]
Qps = Annotated[float, typer.Option(min=0, help="Send no more requests a second than this; 0: as the server bears.")]
MaxInflight = Annotated[int, typer.Option(min=1, max=256, help="Have no more requests under way at once.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (diff.diff, sync, delete):
        app.command()(command)


def sync(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    fleet: session.Fleet = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_TIMEOUT,
    yes: Yes = False,
    no_prune: session.NoPrune = False,
    approve: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGEST", help="Also do what is withheld under this digest.", show_default=False),
    ] = None,
    dry_run: Annotated[
        DryRun, typer.Option(help="client: only show the plan; server: let the API server check every write too.")
    ] = DryRun.NONE,
    details: session.Details = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = settings.MAX_INFLIGHT,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Make the cluster what the files say: the plan that `diff` shows, carried out.

    What would vanish beyond a Fleet's prune budget is withheld (exit code 3) until it is approved. Objects
    that kwokfleet did not make are never touched.
    """
    from kwokfleet.kube import throttled_client

    output.start_logging()
    limits = throttled_client.ClientLimits(max_inflight, qps, dry_run=dry_run is DryRun.SERVER)
    options = session.sync_options(fleet, no_prune=no_prune, approved=approve)
    deadline_s = seconds(timeout)
    where = path or files.default_path()
    with session.open_session(context, kubeconfig, options, limits) as syncer:
        loaded = session.keep_suspended(
            syncer, session.load_files(where, render.live_nodes(None, syncer.sender), stable=True)
        )
        _prepare(syncer, session.kwok_kinds(loaded), write=dry_run is DryRun.NONE)
        made = syncer.plan(loaded)
        session.require_known_fleets(fleet, loaded, made)
        diff.print_plan(made, loaded, diff.PlanFormat.TEXT, details=details)
        if dry_run is DryRun.CLIENT:
            raise typer.Exit(diff.exit_code(made, loaded))
        _ask(made, yes=yes or dry_run is DryRun.SERVER)
        done = _carried_out(syncer, loaded, made, deadline_s if wait and dry_run is DryRun.NONE else 0)
        code = _told(syncer, loaded, done)
        if dry_run is DryRun.NONE:
            _record(syncer, loaded, done, where)
        raise typer.Exit(code)


def _prepare(syncer: "Sync", kinds: "AbstractSet[str]", *, write: bool) -> None:
    """Put the definitions of kwok's kinds, if some that are needed are missing, and of ours in place."""
    from kwokfleet import app
    from kwokfleet.cli import progress

    view = connection.known(syncer.informer)
    if not write:
        session.print_missing_kinds(view, kinds)
        return
    try:
        for name in app.install_definitions(syncer, kinds, output.read_settings(), progress.on_stderr):
            output.print_line(f"installed {name}")
    except errors.UnreachableError:
        raise
    except errors.ClusterError as error:
        if kinds & view.missing:
            raise errors.ClusterError(
                f"the cluster does not know kwok's kinds, and they cannot be installed: {error}",
                hint="run kwokfleet sync once with the rights to create CustomResourceDefinitions",
            ) from error
        output.print_line(f"note: {error}; the status of Fleets is not recorded in the cluster")
        syncer.informer.follow(kinds)
    session.print_missing_kinds(connection.known(syncer.informer), kinds)


def _ask(made: "Plan", *, yes: bool) -> None:
    """Ask whoever sits there before something is deleted."""
    from kwokfleet.reconcile.changes import ChangeAction

    going = sum(change.action in (ChangeAction.DELETE, ChangeAction.REPLACE) for change in made.changes)
    if going and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"delete {files.count(going, 'object')}?", abort=True, err=True)


def _carried_out(syncer: "Sync", loaded: "loader.Loaded", made: "Plan", wait_s: float) -> "SyncReport":
    from kwokfleet.cli import progress
    from kwokfleet.reconcile import outcomes

    with progress.show_changes(output.console(stderr=True)) as bars:
        syncer.watcher = bars.update
        try:
            done = syncer.converge(loaded, made)
        except BaseException as error:
            if isinstance(error, errors.KwokfleetError):
                error.hint = f"{error.hint}; {_GO_ON}".lstrip("; ")
            else:
                output.print_line(_GO_ON)
            raise
        if wait_s and not outcomes.failures(done.outcomes):
            syncer.wait_until_ready(wait_s)
    return done


def _told(syncer: "Sync", loaded: "loader.Loaded", done: "SyncReport") -> errors.ExitCode:
    """Tell what became of it, and return the exit code."""
    from kwokfleet.cli import plan_view
    from kwokfleet.reconcile import outcomes
    from kwokfleet.reconcile import sync as reconcile_sync
    from kwokfleet.reconcile.changes import WithheldCause

    for line in plan_view.outcomes(outcomes.failures(done.outcomes)):
        output.print_line(line)
    for each in done.left.withheld:
        if each.cause is WithheldCause.STALLED:
            for line in plan_view.withheld(each):
                output.print_line(line)
    good = sum(each.result in outcomes.SUCCESSFUL for each in done.outcomes)
    code = reconcile_sync.exit_code(done, usable=loaded.usable)
    if syncer.sender.limits.dry_run:
        output.print_line(f"dry run: the API server accepts {good:,} of {files.count(len(done.outcomes), 'change')}")
        return code
    if done.outcomes:
        output.print_line(f"{good:,} of {files.count(len(done.outcomes), 'change')} made")
    if done.left.changes:
        output.print_line(f"{files.count(len(done.left.changes), 'change')} left: another sync goes on from there")
    return code


def _record(syncer: "Sync", loaded: "loader.Loaded", done: "SyncReport", where: "Path") -> None:
    """Tell the cluster how its Fleets stand, and which commit they were made equal to."""
    from kwokfleet.reconcile import fleet_status, outcomes
    from kwokfleet.reconcile.changes import WithheldCause
    from kwokfleet.source import sources

    about = fleet_status.StatusContext(sources.folder_description(where, loaded.snapshot.digest))
    if not syncer.write_status(loaded, done, about) and outcomes.of_cause(done.left.withheld, WithheldCause.APPROVAL):
        output.print_line("note: this could not be recorded in the cluster; approve with: sync --approve DIGEST")


def seconds(text: str, option: str = "--timeout") -> float:
    """Read a duration that somebody typed."""
    from kwokfleet.api import units

    try:
        return units.duration(text).total_seconds()
    except ValueError as error:
        raise errors.InputError(f"{option} {text} {error}", hint=f"for example: {option} 5m") from None


# ----------------------------------------------------------------------------------------
# delete


def delete(  # noqa: PLR0913, PLR0917  # one for each option
    fleet: Annotated[
        str, typer.Argument(metavar="FLEET", help="The Fleet to remove.", autocompletion=render.fleet_names)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = settings.MAX_INFLIGHT,
    details: session.Details = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Remove a Fleet from the cluster: the sync of nothing, with the same guards.

    Nodes are drained first. Stages and namespaces that other Fleets share stay. Nothing is done before you
    say yes to what is shown; where nobody can be asked, without --yes it exits 3.
    """
    from kwokfleet.kube import throttled_client
    from kwokfleet.reconcile import reconciler
    from kwokfleet.source import loader

    output.start_logging()
    ordered = reconciler.ReconcileOptions(only=frozenset({fleet, ""}), budget=False)
    with session.open_session(context, kubeconfig, ordered, throttled_client.ClientLimits(max_inflight, qps)) as syncer:
        view = connection.known(syncer.informer)
        session.print_missing_kinds(view, {"Stage"})
        if {each.fleet for each in view.objects.values()} - {fleet, ""}:
            syncer.limit_to({fleet})  # what Fleets share is still needed by the others
        nothing = loader.empty_tree()
        made = syncer.plan(nothing)
        if made.empty:
            raise errors.InputError(f"the cluster has nothing of a Fleet {fleet!r}", hint="see kwokfleet get fleets")
        diff.print_plan(made, nothing, diff.PlanFormat.TEXT, details=details)
        if made.changes and not yes:
            _confirm_delete(fleet, len(made.changes))
        done = _carried_out(syncer, nothing, made, 0)
        code = _told(syncer, nothing, done)
        if code is errors.ExitCode.DONE:
            syncer.delete_fleet(fleet)
        raise typer.Exit(code)


def _confirm_delete(fleet: str, count: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.print_line("nothing was deleted: nobody can be asked here, and --yes was not given")
        raise typer.Exit(errors.ExitCode.WITHHELD)
    typer.confirm(f"delete {files.count(count, 'object')} of fleet {fleet}?", abort=True, err=True)
