"""`kwokfleet sync` and `kwokfleet delete`: apply the plan that `diff` shows."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, diff, files, output, render, session

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from kwokfleet.reconcile.changes import Plan
    from kwokfleet.reconcile.sync import Sync, SyncReport
    from kwokfleet.source import loader

_NEXT_SYNC = "applied changes stay; the next sync continues"
WAIT_TIMEOUT = output.duration_text(settings.WAIT_TIMEOUT)

DryRun = Literal["none", "client", "server"]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all nodes are Ready and schedulable.")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="Time limit, for example 90s or 5m.")]
Qps = Annotated[float, typer.Option(min=0, help="Maximum requests per second; 0: adapt to the API server.")]
MaxInflight = Annotated[int, typer.Option(min=1, max=256, help="Maximum concurrent requests.")]


def sync(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    fleet: session.Fleet = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_TIMEOUT,
    yes: Yes = False,
    no_prune: session.NoPrune = False,
    approve: Annotated[
        list[str] | None, typer.Option(metavar="DIGEST", help="Also apply the withheld plan with this digest.")
    ] = None,
    dry_run: Annotated[
        DryRun, typer.Option(help="client: only show the plan; server: the API server also validates every write.")
    ] = "none",
    details: session.Details = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = settings.MAX_INFLIGHT,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Apply the fleet files to the cluster: the plan that `kwokfleet diff` shows.

    A plan that deletes more than a Fleet's prune budget is withheld (exit code 3) until it is approved. Objects
    that kwokfleet did not create are never changed.
    """
    from kwokfleet.kube import throttled_client
    from kwokfleet.render import desired

    output.start_logging()
    limits = throttled_client.ClientLimits(max_inflight, qps, dry_run=dry_run == "server")
    options = session.sync_options(fleet, no_prune=no_prune, approved=approve)
    deadline_s = seconds(timeout)
    where = path or files.default_path()
    with session.open_session(context, kubeconfig, options, limits) as syncer:
        loaded = session.load_with_suspensions(syncer, where, stable=True)
        _prepare(syncer, desired.cluster_kinds(loaded.tree), write=dry_run == "none")
        plan = syncer.plan(loaded)
        session.require_known_fleets(fleet, loaded, plan)
        diff.print_plan(plan, loaded, "text", details=details)
        if dry_run == "client":
            raise typer.Exit(diff.exit_code(plan, loaded))
        _confirm_deletions(plan, yes=yes or dry_run == "server")
        report = _apply(syncer, loaded, plan, deadline_s if wait and dry_run == "none" else 0)
        code = _print_result(syncer, loaded, report)
        if dry_run == "none":
            _record_status(syncer, loaded, report, where)
        raise typer.Exit(code)


def _prepare(syncer: "Sync", kinds: "AbstractSet[str]", *, write: bool) -> None:
    """Install the CRDs of kwokfleet, and those of kwok if the files need them."""
    from kwokfleet import app

    view = connection.wait_until_listed(syncer.informer)
    if not write:
        session.print_missing_kinds(view, kinds)
        return
    try:
        for name in app.install_definitions(syncer, kinds, output.read_settings(), output.show_progress):
            output.print_line(f"installed {name}")
    except errors.UnreachableError:
        raise
    except errors.ClusterError as error:
        if kinds & view.missing:
            raise errors.ClusterError(
                f"the cluster has no CRDs of kwok, and they cannot be installed: {error}",
                hint="run kwokfleet sync once with the rights to create CustomResourceDefinitions",
            ) from error
        output.print_line(f"note: {error}; the status of Fleets is not recorded in the cluster")
        syncer.informer.watch_kinds(kinds)
    session.print_missing_kinds(connection.wait_until_listed(syncer.informer), kinds)


def _confirm_deletions(plan: "Plan", *, yes: bool) -> None:
    """Ask on a terminal before objects are deleted."""
    from kwokfleet.reconcile.changes import ChangeAction

    deletions = sum(change.action in (ChangeAction.DELETE, ChangeAction.REPLACE) for change in plan.changes)
    if deletions and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"delete {files.count(deletions, 'object')}?", abort=True, err=True)


def _apply(syncer: "Sync", loaded: "loader.Loaded", plan: "Plan", wait_s: float) -> "SyncReport":
    from kwokfleet.cli import progress
    from kwokfleet.reconcile import outcomes

    with progress.show_changes(output.console(stderr=True)) as bars:
        syncer.watcher = bars.update
        try:
            report = syncer.converge(loaded, plan)
        except BaseException as error:
            if isinstance(error, errors.KwokfleetError):
                error.hint = f"{error.hint}; {_NEXT_SYNC}".lstrip("; ")
            else:
                output.print_line(_NEXT_SYNC)
            raise
        if wait_s and not outcomes.failures(report.outcomes):
            syncer.wait_until_ready(wait_s)
    return report


def _print_result(syncer: "Sync", loaded: "loader.Loaded", report: "SyncReport") -> errors.ExitCode:
    """Print the outcomes; return the exit code."""
    from kwokfleet.cli import plan_view
    from kwokfleet.reconcile import outcomes
    from kwokfleet.reconcile import sync as reconcile_sync
    from kwokfleet.reconcile.changes import WithheldCause

    output.print_lines(plan_view.outcomes(outcomes.failures(report.outcomes)))
    diff.print_withheld(held for held in report.left.withheld if held.cause is WithheldCause.STALLED)
    applied = sum(outcome.result in outcomes.SUCCESSFUL for outcome in report.outcomes)
    code = reconcile_sync.exit_code(report, usable=loaded.usable)
    if syncer.sender.limits.dry_run:
        output.print_line(
            f"dry run: the API server accepts {applied:,} of {files.count(len(report.outcomes), 'change')}"
        )
        return code
    if report.outcomes:
        output.print_line(f"{applied:,} of {files.count(len(report.outcomes), 'change')} applied")
    if report.left.changes:
        output.print_line(f"{files.count(len(report.left.changes), 'change')} left; the next sync continues")
    return code


def _record_status(syncer: "Sync", loaded: "loader.Loaded", report: "SyncReport", where: "Path") -> None:
    """Write the status of the Fleets, with the commit of the files."""
    from kwokfleet.reconcile import fleet_status
    from kwokfleet.reconcile.changes import WithheldCause
    from kwokfleet.source import folder_source

    about = fleet_status.StatusContext(folder_source.folder_description(where, loaded.snapshot.digest))
    is_recorded = syncer.write_status(loaded, report, about)
    if not is_recorded and any(group.cause is WithheldCause.APPROVAL for group in report.left.withheld):
        output.print_line(
            "note: cannot record the withheld plan in the cluster; approve it with: sync --approve DIGEST"
        )


def seconds(text: str, option: str = "--timeout") -> float:
    """Parse the duration of an option."""
    from kwokfleet.api import units

    try:
        return units.duration(text).total_seconds()
    except ValueError as error:
        raise errors.InputError(f"{option} {text}: {error}", hint=f"for example: {option} 5m") from None


def delete(  # noqa: PLR0913, PLR0917  # one for each option
    fleet: Annotated[str, typer.Argument(metavar="FLEET", help="Fleet to delete.", autocompletion=render.fleet_names)],
    yes: Yes = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = settings.MAX_INFLIGHT,
    details: session.Details = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Delete a Fleet from the cluster, after confirmation.

    Nodes are drained first. Stages and namespaces that other Fleets use stay. Without a terminal, --yes is required;
    else the command exits with code 3.
    """
    from kwokfleet.kube import throttled_client
    from kwokfleet.reconcile import status_writer
    from kwokfleet.source import loader

    output.start_logging()
    limits = throttled_client.ClientLimits(max_inflight, qps)
    with session.open_deletion(fleet, context, kubeconfig, limits) as (syncer, view):
        session.print_missing_kinds(view, {"Stage"})
        empty = loader.empty_tree()
        plan = syncer.plan(empty)
        if plan.empty:
            raise errors.InputError(
                f"Fleet {fleet!r} has no objects in the cluster", hint="list the fleets: kwokfleet get fleets"
            )
        diff.print_plan(plan, empty, "text", details=details)
        if plan.changes and not yes:
            _confirm_delete(fleet, len(plan.changes))
        report = _apply(syncer, empty, plan, 0)
        code = _print_result(syncer, empty, report)
        if code is errors.ExitCode.DONE:
            status_writer.StatusWriter(syncer.sender).delete(fleet)
        raise typer.Exit(code)


def _confirm_delete(fleet: str, count: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.print_line("nothing was deleted: there is no terminal for the confirmation; use --yes")
        raise typer.Exit(errors.ExitCode.WITHHELD)
    typer.confirm(f"delete {files.count(count, 'object')} of fleet {fleet}?", abort=True, err=True)
