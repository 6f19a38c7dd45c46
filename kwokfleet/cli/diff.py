"""`kwokfleet diff`: the plan of a sync. `sync` and `status` print plans with it, too."""

import gc
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, files, output, render, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kwokfleet.kube.informer.informer import CacheView
    from kwokfleet.reconcile import reconciler
    from kwokfleet.reconcile.changes import Plan, Withheld
    from kwokfleet.reconcile.plan_input import FleetPolicy
    from kwokfleet.source import loader

PlanFormat = Literal["text", "json", "markdown", "unified"]


def diff(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    form: Annotated[PlanFormat | None, typer.Option("--output", "-o", help="Output format. [default: text]")] = None,
    details: session.Details = False,
    fleet: session.Fleet = None,
    live: Annotated[
        Path | None,
        typer.Option(
            help="Compare with the objects in this file instead of a cluster: "
            "kubectl get nodes,namespaces,configmaps,storageclasses,stages -A -o json --show-managed-fields"
        ),
    ] = None,
    no_prune: session.NoPrune = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show the changes that a sync would make.

    Exits with 0 if there are none, 1 if there are changes, 2 or more on errors. Needs only read access. The
    variable KUBECTL_EXTERNAL_DIFF names an external diff program, as for kubectl diff.
    """
    gc.disable()  # a short process that keeps nearly all its objects
    where = path or files.default_path()
    options = session.sync_options(fleet, no_prune=no_prune)
    if live:
        plan, loaded = _saved_plan(where, live, options)
    else:
        from kwokfleet.render import desired

        plan, loaded, view, _ = live_plan(where, context, kubeconfig, options)
        session.print_missing_kinds(view, desired.cluster_kinds(loaded.tree))
    session.require_known_fleets(fleet, loaded, plan)
    external = settings.external_diff()
    if external and form in (None, "unified"):
        from kwokfleet.cli import difftool
        from kwokfleet.reconcile import plan_formats

        difftool.show(
            external, {plan_formats.file_name(change): plan_formats.before_and_after(change) for change in plan.changes}
        )
        print_withheld(plan.withheld)
    else:
        print_plan(plan, loaded, form or "text", details=details)
    raise typer.Exit(exit_code(plan, loaded))


def live_plan(
    where: Path, context: str | None, kubeconfig: Path | None, options: "reconciler.ReconcileOptions"
) -> "tuple[Plan, loader.Loaded, CacheView, Mapping[str, FleetPolicy]]":
    """Return the plan, the loaded files, the objects in the cluster, and the rules of each Fleet."""
    with session.open_session(context, kubeconfig, options) as syncer:
        loaded = session.load_with_suspensions(syncer, where)
        view = connection.wait_until_listed(syncer.informer)
        return syncer.plan(loaded), loaded, view, syncer.policies


def _saved_plan(where: Path, live: Path, options: "reconciler.ReconcileOptions") -> "tuple[Plan, loader.Loaded]":
    from kwokfleet.reconcile import cluster_state, reconciler

    loaded = session.load_files(where, render.live_nodes(live))
    manifests = files.read_objects(live)
    if not any("managedFields" in manifest["metadata"] for manifest in manifests):
        output.print_line(
            f"note: {live} has no managedFields, so removed fields are not detected; "
            "save it with kubectl get --show-managed-fields"
        )
    saved = cluster_state.SavedCluster(manifests)
    return reconciler.Reconciler(saved, options).plan(loaded, datetime.now(UTC)), loaded


def print_plan(plan: "Plan", loaded: "loader.Loaded", form: PlanFormat, *, details: bool) -> None:
    """Print changes and withheld changes."""
    from kwokfleet.cli import plan_view
    from kwokfleet.reconcile import plan_formats

    if form == "json":
        typer.echo(plan_formats.to_json(plan, whole=details))
    elif form == "markdown":
        typer.echo(plan_formats.to_markdown(plan), nl=False)
    elif form == "unified":
        sys.stdout.writelines(_unified(plan))
    else:
        plan_view.echo(plan_view.lines(plan, details=details))
        output.print_line(_summary(plan, loaded))


def _summary(plan: "Plan", loaded: "loader.Loaded") -> str:
    """Return a plan in one line; files with errors could not be compared."""
    from kwokfleet.documents import problems
    from kwokfleet.reconcile import outcomes

    invalid_files = sorted({problem.path for problem in problems.errors(loaded.problems)})
    if not invalid_files:
        return "no differences" if plan.empty else outcomes.summary(plan)
    others = "no other differences" if plan.empty else outcomes.summary(plan)
    return f"{others}; not compared, because of errors: {', '.join(invalid_files)}"


def _unified(plan: "Plan") -> "Iterator[str]":
    from kwokfleet.reconcile import plan_formats

    use_color = output.use_color()
    for change in plan.changes:
        text = plan_formats.unified_diff(change)
        yield "".join(map(_diff_line, text.splitlines(keepends=True))) if use_color else text
    print_withheld(plan.withheld)


def print_withheld(withheld: "Iterable[Withheld]") -> None:
    """Print withheld changes to standard error."""
    from kwokfleet.cli import plan_view

    for held in withheld:
        output.print_lines(plan_view.withheld(held))


def _diff_line(line: str) -> str:
    colors = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    color = colors.get(line[:1])
    return typer.style(line, fg=color) if color else line


def exit_code(plan: "Plan", loaded: "loader.Loaded") -> errors.ExitCode:
    """Return the exit code of a plan that is not applied."""
    from kwokfleet.reconcile.changes import WithheldCause

    causes = {held.cause for held in plan.withheld}
    if WithheldCause.UNKNOWN in causes:
        return errors.ExitCode.CLUSTER
    if causes & {WithheldCause.CONFLICT, WithheldCause.NOT_FAKE}:
        return errors.ExitCode.NOT_OURS
    if WithheldCause.BROKEN in causes or not loaded.usable:
        return errors.ExitCode.INPUT
    return errors.ExitCode.DONE if plan.empty else errors.ExitCode.NO
