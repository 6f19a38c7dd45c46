"""`kwokfleet diff`, `sync` and `delete`: see exactly what would change, then change it."""

import gc
import os
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kwokfleet import errors
from kwokfleet.cli import connection, fleets, output, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kwokfleet import apply, reconcile, source
    from kwokfleet import sync as syncing
    from kwokfleet.core.objects import Manifest
    from kwokfleet.core.observed import Inventory
    from kwokfleet.core.plan import FleetRules, Plan
    from kwokfleet.edge import mirror

ESTABLISHED_S = 30.0
_GO_ON = "what was done stays, and another sync goes on from there"


class DiffFormat(StrEnum):
    """How `diff` prints a plan."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    UNIFIED = "unified"


class DryRun(StrEnum):
    """How far `sync` goes."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


Fleet = Annotated[
    list[str] | None,
    typer.Option(help="Only this Fleet; may be repeated.", show_default=False, autocompletion=render.fleet_names),
]
NoPrune = Annotated[
    bool,
    typer.Option("--no-prune", help="Delete nothing: neither what is no longer in the files nor what is too many."),
]
Details = Annotated[bool, typer.Option("--details", "-d", help="Each object and each field, not only the groups.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before something is deleted.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all nodes are Ready and schedulable.")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait, as in 90s or 5m.")]
Qps = Annotated[float, typer.Option(min=0, help="Send no more requests a second than this; 0: as the server bears.")]
MaxInflight = Annotated[int, typer.Option(min=1, max=256, help="Have no more requests under way at once.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (diff, sync, delete):
        app.command()(command)


def diff(  # noqa: PLR0913, PLR0917  # one for each option
    path: fleets.OnePath = None,
    form: Annotated[
        DiffFormat | None, typer.Option("--output", "-o", help="How to print it. [default: text]", show_default=False)
    ] = None,
    details: Details = False,
    fleet: Fleet = None,
    live: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this file, not a cluster: "
            "kubectl get nodes,namespaces,configmaps,storageclasses,stages -A -o json --show-managed-fields",
            show_default=False,
        ),
    ] = None,
    no_prune: NoPrune = False,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Show what a sync would change; change nothing.

    Exits 0 if nothing differs, 1 if something does, 2 and up on errors. Read-only rights are enough. The
    variable KUBECTL_EXTERNAL_DIFF names a program that is shown both sides, as with kubectl diff.
    """
    gc.disable()  # this process makes many small things, drops few, and ends
    where = path or fleets.default_path()
    made, loaded = (
        _saved_plan(where, live, _options(fleet, no_prune=no_prune))
        if live
        else _live_plan(where, context, kubeconfig, _options(fleet, no_prune=no_prune))
    )
    _refuse_unknown(fleet, loaded, made)
    external = os.environ.get("KUBECTL_EXTERNAL_DIFF", "")
    if external and form in (None, DiffFormat.UNIFIED):
        from kwokfleet.edge import difftool
        from kwokfleet.formats import plans

        difftool.show(external, {plans.file_name(change): plans.sides(change) for change in made.changes})
        _print_withheld(made)
    else:
        _print_plan(made, form or DiffFormat.TEXT, details=details)
    raise typer.Exit(_diff_code(made, loaded))


def _options(fleet: list[str] | None, *, no_prune: bool, approved: list[str] | None = None) -> "reconcile.Options":
    from kwokfleet import reconcile

    only = frozenset(fleet) | {""} if fleet else None
    return reconcile.Options(not no_prune, only, frozenset(approved or ()))


def _loaded(
    where: Path, live_nodes: "Callable[[str | None], list[Manifest]]", *, stable: bool = False
) -> "source.Loaded":
    """Load files; say what is wrong with them, and go on with what is right."""
    from kwokfleet import source

    loaded = source.Loader(live_nodes).load(where, stable=stable)
    for problem in loaded.problems:
        output.print_line(fleets.problem_line(problem))
    if not loaded.snapshot.files:
        raise errors.InputError(
            f"there is no fleet file in {where} that can be read: nothing was changed",
            hint="an empty source is never taken for a wish; to remove a fleet: kwokfleet delete FLEET",
        )
    return loaded


def _in_force(session: "syncing.Sync", loaded: "source.Loaded") -> "source.Loaded":
    """Return what is loaded, as the daemon would take it: what was suspended in the cluster stays as it is."""
    from kwokfleet import reconcile, world
    from kwokfleet.core import standing

    try:
        found = world.fleets(session.sender)
    except errors.ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        output.print_line(f"note: {error}: whether somebody suspended a fleet is not known")
        return loaded
    return reconcile.as_suspended(loaded, standing.suspended(found))


def _live_plan(
    where: Path, context: str | None, kubeconfig: Path | None, options: "reconcile.Options"
) -> "tuple[Plan, source.Loaded]":
    from kwokfleet import apply

    with _session(context, kubeconfig, options, apply.Limits()) as session:
        loaded = _in_force(session, _loaded(where, render.live_nodes(None, session.sender)))
        _note_missing(connection.known(session.mirror), _kwok_kinds(loaded))
        return session.plan(loaded), loaded


def compared(
    where: Path, context: str | None, kubeconfig: Path | None, fleet: list[str] | None
) -> "tuple[Plan, source.Loaded, Inventory, Mapping[str, FleetRules]]":
    """Return what differs between files and cluster, with what is in both."""
    from kwokfleet import apply

    with _session(context, kubeconfig, _options(fleet, no_prune=False), apply.Limits()) as session:
        loaded = _in_force(session, _loaded(where, render.live_nodes(None, session.sender)))
        view = connection.known(session.mirror)
        made = session.plan(loaded)
        _refuse_unknown(fleet, loaded, made)
        return made, loaded, view.objects, session.rules


def _note_missing(view: "mirror.View", kinds: "set[str]") -> None:
    """Say what of the cluster is not known; kwok's other kinds are nobody's concern unless the files need them."""
    from kwokfleet.core import requests

    if kinds & view.missing:
        output.print_line("note: the cluster does not know kwok's kinds yet; sync installs their definitions")
    optional = {each.kind for each in requests.KWOK} - kinds
    for kind, why in view.unknown.items():
        if kind not in optional:
            output.print_line(f"note: {why}")


def _kwok_kinds(loaded: "source.Loaded") -> "set[str]":
    """Return the kinds of kwok's that the files need."""
    from kwokfleet.core import render as rendering

    return {"Stage", *rendering.kwok_kinds(loaded.tree)}


def _saved_plan(where: Path, live: Path, options: "reconcile.Options") -> "tuple[Plan, source.Loaded]":
    from kwokfleet import reconcile, world

    loaded = _loaded(where, render.live_nodes(live))
    found = fleets.saved_objects(live)
    if not any("managedFields" in each["metadata"] for each in found):
        output.print_line(
            f"note: {live} does not say who set which field: what is to be removed cannot be told; "
            "save it with kubectl get --show-managed-fields"
        )
    saved = world.Saved(found)
    return reconcile.Reconciler(saved, options).plan(loaded, datetime.now(UTC)), loaded


def _refuse_unknown(fleet: list[str] | None, loaded: "source.Loaded", made: "Plan") -> None:
    """Refuse the name of a Fleet that neither the files nor the cluster know."""
    from kwokfleet.core import problems

    known = {each.name for each in loaded.tree.fleets} | set(loaded.broken)
    known |= {change.fleet for change in made.changes} | {each.fleet for each in made.withheld} - {""}
    for name in fleet or ():
        if name not in known:
            raise errors.InputError(f"there is no Fleet {name!r}", hint=problems.meant(name, sorted(known)))


def _print_plan(made: "Plan", form: DiffFormat, *, details: bool) -> None:
    from kwokfleet.cli import plan_text
    from kwokfleet.core import report
    from kwokfleet.formats import plans

    if form is DiffFormat.JSON:
        typer.echo(plans.to_json(made, whole=details))
    elif form is DiffFormat.MARKDOWN:
        typer.echo(plans.to_markdown(made), nl=False)
    elif form is DiffFormat.UNIFIED:
        sys.stdout.writelines(_unified(made))
    else:
        plan_text.echo(plan_text.lines(made, details=details))
        output.print_line("no differences" if made.empty else report.summary(made))


def _unified(made: "Plan") -> "Iterator[str]":
    from kwokfleet.cli import plan_text
    from kwokfleet.formats import plans

    colour = plan_text.coloured()
    for change in made.changes:
        text = plans.unified(change)
        yield "".join(map(_diff_line, text.splitlines(keepends=True))) if colour else text
    _print_withheld(made)


def _print_withheld(made: "Plan") -> None:
    from kwokfleet.cli import plan_text

    for each in made.withheld:
        for line in plan_text.withheld(each):
            output.print_line(line)


def _diff_line(line: str) -> str:
    colours = {"+": typer.colors.GREEN, "-": typer.colors.RED, "@": typer.colors.CYAN}
    colour = colours.get(line[:1])
    return typer.style(line, fg=colour) if colour else line


def _diff_code(made: "Plan", loaded: "source.Loaded") -> errors.ExitCode:
    from kwokfleet.core.plan import Cause

    causes = {each.cause for each in made.withheld}
    if Cause.UNKNOWN in causes:
        return errors.ExitCode.CLUSTER
    if causes & {Cause.CONFLICT, Cause.NOT_FAKE}:
        return errors.ExitCode.NOT_OURS
    if Cause.BROKEN in causes or not loaded.usable:  # what a broken file asks for, nobody has compared
        return errors.ExitCode.INPUT
    return errors.ExitCode.DONE if made.empty else errors.ExitCode.NO


# ----------------------------------------------------------------------------------------
# sync


def sync(  # noqa: PLR0913, PLR0917  # one for each option
    path: fleets.OnePath = None,
    fleet: Fleet = None,
    wait: Wait = False,
    timeout: Timeout = "5m",
    yes: Yes = False,
    no_prune: NoPrune = False,
    approve: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGEST", help="Also do what is withheld under this digest.", show_default=False),
    ] = None,
    dry_run: Annotated[
        DryRun, typer.Option(help="client: only show the plan; server: let the API server check every write too.")
    ] = DryRun.NONE,
    details: Details = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = 128,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Make the cluster what the files say: the plan that `diff` shows, carried out.

    What would vanish beyond a Fleet's prune budget is withheld (exit code 3) until it is approved. Objects
    that kwokfleet did not make are never touched.
    """
    from kwokfleet import apply

    output.start_logging()
    limits = apply.Limits(max_inflight, qps, dry_run=dry_run is DryRun.SERVER)
    options = _options(fleet, no_prune=no_prune, approved=approve)
    deadline_s = seconds(timeout)
    where = path or fleets.default_path()
    with _session(context, kubeconfig, options, limits) as session:
        loaded = _in_force(session, _loaded(where, render.live_nodes(None, session.sender), stable=True))
        _prepare(session, _kwok_kinds(loaded), write=dry_run is DryRun.NONE)
        made = session.plan(loaded)
        _refuse_unknown(fleet, loaded, made)
        _print_plan(made, DiffFormat.TEXT, details=details)
        if dry_run is DryRun.CLIENT:
            raise typer.Exit(_diff_code(made, loaded))
        _ask(made, yes=yes or dry_run is DryRun.SERVER)
        done = _carried_out(session, loaded, made, deadline_s if wait and dry_run is DryRun.NONE else 0)
        code = _told(session, loaded, done)
        if dry_run is DryRun.NONE:
            _record(session, loaded, done, where)
        raise typer.Exit(code)


@contextmanager
def _session(
    context: str | None, kubeconfig: Path | None, options: "reconcile.Options", limits: "apply.Limits"
) -> "Iterator[syncing.Sync]":
    """Connect, and follow our objects; whatever ends the block, ends all that it began."""
    from kwokfleet import sync as syncing

    api = connection.connected(context, kubeconfig)
    with connection.following(api) as follower:
        session = syncing.Sync(api, follower, options, limits)
        try:
            yield session
        finally:
            session.stop.set()


def _prepare(session: "syncing.Sync", kinds: "set[str]", *, write: bool) -> None:
    """Put the definitions of kwok's kinds, if some that are needed are missing, and of ours in place."""
    from kwokfleet import apply

    view = connection.known(session.mirror)
    if not write:
        _note_missing(view, kinds)
        return
    wanted = own_definition() + (kwok_definitions() if kinds & view.missing else [])
    try:
        for name in apply.install(session.sender, wanted, ESTABLISHED_S):
            output.print_line(f"installed {name}")
    except errors.UnreachableError:
        raise
    except errors.ClusterError as error:
        if kinds & view.missing:
            raise errors.ClusterError(
                f"the cluster does not know kwok's kinds, and they cannot be installed: {error}",
                hint="let somebody with the rights run kwokfleet sync once",
            ) from error
        output.print_line(f"note: {error}; how fleets stand is not recorded in the cluster")
    session.mirror.wait(lambda now: not kinds & now.missing, ESTABLISHED_S)
    _note_missing(connection.known(session.mirror), kinds)


def own_definition() -> "list[Manifest]":
    """Return the definition of our own kind."""
    import hashlib

    from kwokfleet.core import documents, objects
    from kwokfleet.edge import library

    text = library.definition()
    parsed, _ = documents.parse("crd", text)
    definition: Manifest = parsed[0].value  # type: ignore[assignment]  # our own file, and a test reads it
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return [{**definition, "metadata": {**definition["metadata"], "annotations": {objects.DIGEST: digest}}}]


def kwok_definitions() -> "list[Manifest]":
    """Return the definitions of kwok's kinds, as the pinned version of kwok has them."""
    from kwokfleet.cli import display
    from kwokfleet.core import documents
    from kwokfleet.embedded import crds

    with display.shown(output.console(stderr=True)) as report:
        found = crds.files(output.read_settings(), report)
    texts = [(str(path), path.read_text(encoding="utf-8")) for path in found]
    return [
        each.value for path, text in texts for each in documents.parse(path, text)[0] if isinstance(each.value, dict)
    ]


def _ask(made: "Plan", *, yes: bool) -> None:
    """Ask whoever sits there before something is deleted."""
    from kwokfleet.core.plan import Action

    going = sum(change.action in (Action.DELETE, Action.REPLACE) for change in made.changes)
    if going and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"delete {fleets.count(going, 'object')}?", abort=True, err=True)


def _carried_out(session: "syncing.Sync", loaded: "source.Loaded", made: "Plan", wait_s: float) -> "syncing.Report":
    from kwokfleet.cli import bars
    from kwokfleet.core import report

    with bars.shown(output.console(stderr=True)) as shown:
        session.watcher = shown.watch
        try:
            done = session.carry_out(loaded, made)
        except BaseException as error:
            if isinstance(error, errors.KwokfleetError):
                error.hint = f"{error.hint}; {_GO_ON}".lstrip("; ")
            else:
                output.print_line(_GO_ON)
            raise
        if wait_s and not report.bad(done.outcomes):
            session.wait_until_ready(wait_s)
    return done


def _told(session: "syncing.Sync", loaded: "source.Loaded", done: "syncing.Report") -> errors.ExitCode:
    """Tell what became of it, and return the exit code."""
    from kwokfleet import sync as syncing
    from kwokfleet.cli import plan_text
    from kwokfleet.core import report
    from kwokfleet.core.plan import Cause

    for line in plan_text.outcomes(report.bad(done.outcomes)):
        output.print_line(line)
    for each in done.left.withheld:
        if each.cause is Cause.STALLED:
            for line in plan_text.withheld(each):
                output.print_line(line)
    good = sum(each.result in report.GOOD for each in done.outcomes)
    code = syncing.worst(done, usable=loaded.usable)
    if session.sender.limits.dry_run:
        output.print_line(f"dry run: the API server accepts {good:,} of {fleets.count(len(done.outcomes), 'change')}")
        return code
    if done.outcomes:
        output.print_line(f"{good:,} of {fleets.count(len(done.outcomes), 'change')} made")
    if done.left.changes:
        output.print_line(f"{fleets.count(len(done.left.changes), 'change')} left: another sync goes on from there")
    return code


def _record(session: "syncing.Sync", loaded: "source.Loaded", done: "syncing.Report", where: Path) -> None:
    """Tell the cluster how its Fleets stand, and which commit they were made equal to."""
    from kwokfleet import feed
    from kwokfleet.core import report, standing
    from kwokfleet.core.plan import Cause

    about = standing.About(feed.told_of(where, loaded.snapshot.digest))
    if not session.record(loaded, done, about) and report.of_cause(done.left.withheld, Cause.APPROVAL):
        output.print_line("note: this could not be recorded in the cluster; approve with: sync --approve DIGEST")


def seconds(text: str, option: str = "--timeout") -> float:
    """Read a duration that somebody typed."""
    from kwokfleet.core import units

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
    details: Details = False,
    qps: Qps = 0,
    max_inflight: MaxInflight = 128,
    context: connection.Context = None,
    kubeconfig: connection.Kubeconfig = None,
) -> None:
    """Remove a Fleet from the cluster: the sync of nothing, with the same guards.

    Nodes are drained first. Stages and namespaces that other Fleets share stay. Nothing is done before you
    say yes to what is shown; where nobody can be asked, without --yes it exits 3.
    """
    from kwokfleet import apply, reconcile, source

    output.start_logging()
    ordered = reconcile.Options(only=frozenset({fleet, ""}), budget=False)
    with _session(context, kubeconfig, ordered, apply.Limits(max_inflight, qps)) as session:
        view = connection.known(session.mirror)
        _note_missing(view, {"Stage"})
        if {each.fleet for each in view.objects.values()} - {fleet, ""}:
            session.limit_to({fleet})  # what Fleets share is still needed by the others
        nothing = source.nothing()
        made = session.plan(nothing)
        if made.empty:
            raise errors.InputError(f"the cluster has nothing of a Fleet {fleet!r}", hint="see kwokfleet get fleets")
        _print_plan(made, DiffFormat.TEXT, details=details)
        if made.changes and not yes:
            _confirm_delete(fleet, len(made.changes))
        done = _carried_out(session, nothing, made, 0)
        code = _told(session, nothing, done)
        if code is errors.ExitCode.DONE:
            session.forget(fleet)
        raise typer.Exit(code)


def _confirm_delete(fleet: str, count: int) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        output.print_line("nothing was deleted: nobody can be asked here, and --yes was not given")
        raise typer.Exit(errors.ExitCode.WITHHELD)
    typer.confirm(f"delete {fleets.count(count, 'object')} of fleet {fleet}?", abort=True, err=True)
