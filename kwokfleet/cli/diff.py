"""`kwokfleet diff`: what a sync would change, for people and for programs; what `sync` and `status` say of it."""

import gc
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors, settings
from kwokfleet.cli import connection, files, output, render, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kwokfleet.kube.observed import Inventory
    from kwokfleet.reconcile import reconciler
    from kwokfleet.reconcile.changes import Plan
    from kwokfleet.reconcile.plan_input import FleetPolicy
    from kwokfleet.source import loader


class PlanFormat(StrEnum):
    """How `diff` prints a plan."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    UNIFIED = "unified"


def diff(  # noqa: PLR0913, PLR0917  # one for each option
    path: files.OnePath = None,
    form: Annotated[
        PlanFormat | None, typer.Option("--output", "-o", help="How to print it. [default: text]", show_default=False)
    ] = None,
    details: session.Details = False,
    fleet: session.Fleet = None,
    live: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this file, not a cluster: "
            "kubectl get nodes,namespaces,configmaps,storageclasses,stages -A -o json --show-managed-fields",
            show_default=False,
        ),
    ] = None,
    no_prune: session.NoPrune = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show what a sync would change; change nothing.

    Exits 0 if nothing differs, 1 if something does, 2 and up on errors. Read-only rights are enough. The
    variable KUBECTL_EXTERNAL_DIFF names a program that is shown both sides, as with kubectl diff.
    """
    gc.disable()  # this process makes many small things, drops few, and ends
    where = path or files.default_path()
    made, loaded = (
        _saved_plan(where, live, session.sync_options(fleet, no_prune=no_prune))
        if live
        else _live_plan(where, context, kubeconfig, session.sync_options(fleet, no_prune=no_prune))
    )
    session.require_known_fleets(fleet, loaded, made)
    external = settings.external_diff()
    if external and form in (None, PlanFormat.UNIFIED):
        from kwokfleet.cli import difftool
        from kwokfleet.reconcile import plan_formats

        difftool.show(
            external, {plan_formats.file_name(change): plan_formats.before_and_after(change) for change in made.changes}
        )
        _print_withheld(made)
    else:
        print_plan(made, loaded, form or PlanFormat.TEXT, details=details)
    raise typer.Exit(exit_code(made, loaded))


def _live_plan(
    where: Path, context: str | None, kubeconfig: Path | None, options: "reconciler.ReconcileOptions"
) -> "tuple[Plan, loader.Loaded]":
    from kwokfleet.kube import throttled_client

    with session.open_session(context, kubeconfig, options, throttled_client.ClientLimits()) as syncer:
        loaded = session.keep_suspended(syncer, session.load_files(where, render.live_nodes(None, syncer.sender)))
        session.print_missing_kinds(connection.known(syncer.informer), session.kwok_kinds(loaded))
        return syncer.plan(loaded), loaded


def _saved_plan(where: Path, live: Path, options: "reconciler.ReconcileOptions") -> "tuple[Plan, loader.Loaded]":
    from kwokfleet.reconcile import cluster_state, reconciler

    loaded = session.load_files(where, render.live_nodes(live))
    found = files.read_objects(live)
    if not any("managedFields" in each["metadata"] for each in found):
        output.print_line(
            f"note: {live} does not say who set which field: what is to be removed cannot be told; "
            "save it with kubectl get --show-managed-fields"
        )
    saved = cluster_state.SavedCluster(found)
    return reconciler.Reconciler(saved, options).plan(loaded, datetime.now(UTC)), loaded


def compare_with_cluster(
    where: Path, context: str | None, kubeconfig: Path | None, fleet: list[str] | None
) -> "tuple[Plan, loader.Loaded, Inventory, Mapping[str, FleetPolicy]]":
    """Return what differs between files and cluster, with what is in both."""
    from kwokfleet.kube import throttled_client

    with session.open_session(
        context, kubeconfig, session.sync_options(fleet, no_prune=False), throttled_client.ClientLimits()
    ) as syncer:
        loaded = session.keep_suspended(syncer, session.load_files(where, render.live_nodes(None, syncer.sender)))
        view = connection.known(syncer.informer)
        made = syncer.plan(loaded)
        session.require_known_fleets(fleet, loaded, made)
        return made, loaded, view.objects, syncer.policies


def print_plan(made: "Plan", loaded: "loader.Loaded", form: PlanFormat, *, details: bool) -> None:
    """Print what is to be done, and what is withheld."""
    from kwokfleet.cli import plan_view
    from kwokfleet.reconcile import plan_formats

    if form is PlanFormat.JSON:
        typer.echo(plan_formats.to_json(made, whole=details))
    elif form is PlanFormat.MARKDOWN:
        typer.echo(plan_formats.to_markdown(made), nl=False)
    elif form is PlanFormat.UNIFIED:
        sys.stdout.writelines(_unified(made))
    else:
        plan_view.echo(plan_view.lines(made, details=details))
        output.print_line(_summary(made, loaded))


def _summary(made: "Plan", loaded: "loader.Loaded") -> str:
    """Return all of it in a line; what a broken file asks for, nobody can tell."""
    from kwokfleet.documents import problems
    from kwokfleet.reconcile import outcomes

    wrong = sorted({each.path for each in problems.errors(loaded.problems)})
    if not wrong:
        return "no differences" if made.empty else outcomes.summary(made)
    asks = f"what {', '.join(wrong)} {'asks' if len(wrong) == 1 else 'ask'} for could not be compared"
    return f"{'nothing else differs' if made.empty else outcomes.summary(made)}; {asks}"


def _unified(made: "Plan") -> "Iterator[str]":
    from kwokfleet.cli import plan_view
    from kwokfleet.reconcile import plan_formats

    colour = plan_view.use_color()
    for change in made.changes:
        text = plan_formats.unified_diff(change)
        yield "".join(map(_diff_line, text.splitlines(keepends=True))) if colour else text
    _print_withheld(made)


def _print_withheld(made: "Plan") -> None:
    from kwokfleet.cli import plan_view

    for each in made.withheld:
        for line in plan_view.withheld(each):
            output.print_line(line)


def _diff_line(line: str) -> str:
    colours = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    colour = colours.get(line[:1])
    return typer.style(line, fg=colour) if colour else line


def exit_code(made: "Plan", loaded: "loader.Loaded") -> errors.ExitCode:
    """Return what a plan that is not carried out ends with."""
    from kwokfleet.reconcile.changes import WithheldCause

    causes = {each.cause for each in made.withheld}
    if WithheldCause.UNKNOWN in causes:
        return errors.ExitCode.CLUSTER
    if causes & {WithheldCause.CONFLICT, WithheldCause.NOT_FAKE}:
        return errors.ExitCode.NOT_OURS
    if WithheldCause.BROKEN in causes or not loaded.usable:  # what a broken file asks for, nobody has compared
        return errors.ExitCode.INPUT
    return errors.ExitCode.DONE if made.empty else errors.ExitCode.NO
