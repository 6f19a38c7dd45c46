"""Commands that need only files: init, validate, render, schema, fmt."""

import gc
import json
import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kwokfleet
from kwokfleet import errors
from kwokfleet.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kwokfleet import source
    from kwokfleet.core import render as rendering
    from kwokfleet.core import schedule, workloads
    from kwokfleet.core.objects import Manifest
    from kwokfleet.core.problems import Problem
    from kwokfleet.edge import files

LOOK_AHEAD = timedelta(days=366)
"""How far from now `render --waves` looks for the next Run of a Wave."""
SCHEMA_FILE = "fleet.schema.json"
KINDS = ("ConfigMap", "Deployment", "Job", "Namespace", "Node", "Pod", "Stage")
"""What the shell completes; any other kind will do."""
PIECE = 1 << 20
"""Characters that are written at once."""

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="Fleet files or folders of them; fleets/ or this folder without it.",
        show_default=False,
    ),
]
OnePath = Annotated[
    Path | None,
    typer.Argument(
        metavar="[PATH]",
        help="A fleet file or a folder of them; fleets/ or this folder without it.",
        show_default=False,
    ),
]


class ReportFormat(StrEnum):
    """How `validate` prints what it found."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


class ManifestFormat(StrEnum):
    """How `render` prints objects."""

    YAML = "yaml"
    JSON = "json"
    NAME = "name"


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (init, validate, render, schema):
        app.command()(command)
    app.command(name="fmt")(format_files)


def default_path() -> Path:
    """Return where fleet files are when nobody says: fleets/, else here."""
    return Path("fleets") if Path("fleets").is_dir() else Path()


def load(loader: "source.Loader", path: Path) -> "source.Loaded":
    """Load a path; one without a single file is a mistake, not an empty wish."""
    loaded = loader.load(path)
    if not loaded.snapshot.files and not loaded.problems:
        raise errors.InputError(
            f"there is no fleet file in {path}", hint="name a folder with *.yaml files, or begin with `kwokfleet init`"
        )
    return loaded


# ----------------------------------------------------------------------------------------
# validate


def validate(
    paths: Paths = None,
    report: Annotated[
        ReportFormat, typer.Option("--output", "-o", help="How to print what was found.")
    ] = ReportFormat.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as errors.")] = False,
) -> None:
    """Check fleet files: all problems of all files at once, each with its line.

    Needs no cluster. Exits 2 if anything is wrong.
    """
    gc.disable()  # this process makes many small things, drops none, and ends
    from kwokfleet import source
    from kwokfleet.core import problems

    loader = source.Loader()
    loaded = [load(loader, path) for path in paths or [default_path()]]
    found = sorted({problem for each in loaded for problem in each.problems})
    fleets = sorted(fleet.name for each in loaded for fleet in each.tree.fleets)
    files = sum(len(each.snapshot.files) for each in loaded)
    wrong = bool(problems.errors(found) or (strict and found))
    _print_report(report, found, {"ok": not wrong, "files": files, "fleets": fleets})
    if report is ReportFormat.TEXT:
        output.print_line(_summary(found, files, len(fleets)))
    if wrong:
        raise typer.Exit(errors.ExitCode.INPUT)


def _print_report(report: ReportFormat, found: "list[Problem]", summary: dict[str, object]) -> None:
    if report is ReportFormat.TEXT:
        coloured = sys.stdout.isatty() and output.read_settings().color
        for problem in found:
            typer.echo(_line(problem, coloured=coloured))
        return
    from kwokfleet.formats import problem_reports

    if report is ReportFormat.JSON:
        typer.echo(problem_reports.to_json(found, summary))
    elif report is ReportFormat.SARIF:
        typer.echo(problem_reports.to_sarif(found, kwokfleet.__version__))
    elif found:
        typer.echo(problem_reports.to_github(found))


def _line(problem: "Problem", *, coloured: bool = False) -> str:
    """Return a Problem as one line; a warning says that it is one."""
    from kwokfleet.core import problems

    text = str(problem)
    place = f"{problem.path}:{problem.line}:{problem.column}: "
    rest = text.removeprefix(place)
    warned = problem.severity is problems.Severity.WARNING
    if coloured:
        place = typer.style(place, bold=True)
        rest = (typer.style("warning: ", fg=typer.colors.YELLOW) if warned else "") + rest
        return place + rest
    return f"{place}warning: {rest}" if warned else text


def _summary(found: "list[Problem]", files: int, fleets: int) -> str:
    from kwokfleet.core import problems

    wrong = len(problems.errors(found))
    warned = len(found) - wrong
    read = f"{_count(files, 'file')}, {_count(fleets, 'usable Fleet' if wrong else 'Fleet')}"
    said = [_count(wrong, "error")] * bool(wrong) + [_count(warned, "warning")] * bool(warned)
    return f"{read}: {' and '.join(said) or 'no problem'}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


# ----------------------------------------------------------------------------------------
# render


def _instant(text: str) -> datetime:
    from kwokfleet.core import units

    try:
        return units.instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _fleet_names() -> list[str]:
    """Return the Fleets here, for the shell to complete."""
    from kwokfleet import source

    return [fleet.name for fleet in source.Loader().load(default_path()).tree.fleets]


def render(  # noqa: PLR0913, PLR0917  # one for each option
    path: OnePath = None,
    now: Annotated[
        datetime | None,
        typer.Option(
            parser=_instant,
            metavar="TIME",
            help="Render as of this time, as in 2026-03-01T08:00:00Z.",
            show_default=False,
        ),
    ] = None,
    waves: Annotated[bool, typer.Option("--waves", help="Also the objects of each wave's next run.")] = False,
    fleet: Annotated[
        str | None,
        typer.Option(help="Only this Fleet's objects.", show_default=False, autocompletion=_fleet_names),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Only objects of this kind, as in Node.", show_default=False, autocompletion=lambda: list(KINDS)
        ),
    ] = None,
    live: Annotated[
        Path | None,
        typer.Option(
            help="Read live nodes from this file (kubectl get nodes -o json) instead of a cluster.", show_default=False
        ),
    ] = None,
    form: Annotated[ManifestFormat, typer.Option("--output", "-o", help="How to print them.")] = ManifestFormat.YAML,
) -> None:
    """Print the objects that fleet files stand for: Stages, nodes, namespaces, and with --waves the workload.

    The same files, seed and time give the same bytes on every machine. Prints nothing if a file is wrong.
    """
    gc.disable()  # this process makes many small things, drops none, and ends
    from kwokfleet import source
    from kwokfleet.core import render as rendering

    loaded = load(source.Loader(_live_nodes(live)), path or default_path())
    refuse_if_wrong(loaded)
    _refuse_unknown(fleet, loaded)
    at = now or datetime.now(UTC)
    renderer = rendering.Renderer()
    desired = renderer.desired(loaded.tree, at)
    _refuse_clashes(renderer)
    manifests: Iterator[tuple[str, Manifest]] = (("", each) for each in rendering.born(loaded.tree, desired, at))
    if waves:
        manifests = _both(manifests, _workload(loaded.tree, at))
    _print_manifests(_chosen(manifests, fleet, kind), form)
    if form is ManifestFormat.YAML and not waves and kind is None:
        for line in _wave_notes(loaded.tree, at, fleet):
            typer.echo(line)


def refuse_if_wrong(loaded: "source.Loaded") -> None:
    """Print what is wrong with the files; if it is more than warnings, stop."""
    for problem in loaded.problems:
        output.print_line(_line(problem))
    if not loaded.usable:
        raise errors.InputError("the fleet files have errors", hint="mend the lines above")


def _refuse_unknown(fleet: str | None, loaded: "source.Loaded") -> None:
    from kwokfleet.core import problems

    names = [each.name for each in loaded.tree.fleets]
    if fleet is not None and fleet not in names:
        raise errors.InputError(f"there is no Fleet {fleet!r} in these files", hint=problems.meant(fleet, names))


def _live_nodes(path: Path | None) -> "Callable[[str | None], list[Manifest]]":
    """Return what knows live nodes: a file, or the cluster once somebody asks."""

    def read(context: str | None) -> "list[Manifest]":
        from kwokfleet.core import tree_checks

        if path is None:
            from kwokfleet.edge import cluster

            return cluster.live_nodes(context)
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise errors.InputError(
                f"{path} cannot be read as JSON: {error}", hint="make it with: kubectl get nodes -o json"
            ) from error
        found, trouble = tree_checks.node_templates([content])
        if trouble:
            raise errors.InputError(f"{path} {trouble}", hint="make it with: kubectl get nodes -o json")
        return found

    return read


def _refuse_clashes(renderer: "rendering.Renderer") -> None:
    if renderer.clashes:
        clash = renderer.clashes[0]
        raise errors.InputError(
            f"two parts of the files ask for {clash.key.kind} {clash.key.name!r}, each in its own way"
            f" (the second is in {'/'.join(part for part in clash.by if part) or 'the Stages'})",
            hint="change the name of one: nodeName of a pool, the name of a Stage",
        )


def _next_runs(tree: "rendering.Tree", now: datetime) -> "Iterator[tuple[workloads.Context, schedule.Run]]":
    """Yield the next Run of each Wave, as if the Fleets were first synced now."""
    from kwokfleet.core import schedule, workloads

    for fleet in tree.fleets:
        for wave in fleet.spec.waves:
            run = next(schedule.runs(wave.start, now, now - timedelta(microseconds=1), now + LOOK_AHEAD), None)
            if run is not None:
                yield workloads.Context(fleet, wave, run.name, tree.traces.get((fleet.name, wave.name))), run


def _wave_notes(tree: "rendering.Tree", now: datetime, fleet: str | None) -> "Iterator[str]":
    """Yield a comment for each Wave: what would happen when."""
    from kwokfleet.core import workloads

    for context, run in _next_runs(tree, now):
        if fleet in {None, context.fleet.name}:
            count, last = 0, run.start
            for instant in workloads.instants(context, run.start):
                count, last = count + 1, instant.at
            what = f"{_count(count, context.wave.template['kind'])}, {_shown(run.start)} to {_shown(last)}"
            yield f"# wave {context.fleet.name}/{context.wave.name}, run {run.name}: {what} (--waves prints them)"


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _workload(tree: "rendering.Tree", now: datetime) -> "Iterator[tuple[str, Manifest]]":
    """Yield each object of each Wave's next Run, with when it is due."""
    from kwokfleet.core import workloads

    for context, run in _next_runs(tree, now):
        make = workloads.maker(context)
        for instant in workloads.instants(context, run.start):
            yield f"# due {_shown(instant.at)}, wave {context.wave.name}, run {run.name}", make(instant.index)


def _both(
    first: "Iterator[tuple[str, Manifest]]", second: "Iterator[tuple[str, Manifest]]"
) -> "Iterator[tuple[str, Manifest]]":
    yield from first
    yield from second


def _chosen(
    manifests: "Iterator[tuple[str, Manifest]]", fleet: str | None, kind: str | None
) -> "Iterator[tuple[str, Manifest]]":
    from kwokfleet.core import objects

    for note, manifest in manifests:
        if kind is not None and manifest["kind"].lower() != kind.lower():
            continue
        if fleet is not None and (manifest["metadata"].get("labels") or {}).get(objects.FLEET) != fleet:
            continue
        yield note, manifest


def _print_manifests(manifests: "Iterator[tuple[str, Manifest]]", form: ManifestFormat) -> None:
    """Print objects, a good piece at a time: a write for each would cost more than making it."""
    texts = {ManifestFormat.NAME: _names, ManifestFormat.JSON: _json_lines, ManifestFormat.YAML: _yaml_documents}[form]
    pieces: list[str] = []
    size = 0
    for text in texts(manifests):
        pieces.append(text)
        size += len(text)
        if size > PIECE:
            sys.stdout.write("".join(pieces))
            pieces, size = [], 0
    sys.stdout.write("".join(pieces))


def _names(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    for _, manifest in manifests:
        metadata = manifest["metadata"]
        inside = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        yield f"{manifest['kind'].lower()}/{inside}{metadata['name']}\n"


def _json_lines(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    import orjson

    for _, manifest in manifests:
        yield orjson.dumps(manifest, option=orjson.OPT_APPEND_NEWLINE).decode()


def _yaml_documents(manifests: "Iterator[tuple[str, Manifest]]") -> "Iterator[str]":
    from kwokfleet.core import yamltext

    writer = yamltext.Writer()
    for note, manifest in manifests:
        yield f"---\n{note}\n" if note else "---\n"
        yield writer.document(manifest)


# ----------------------------------------------------------------------------------------
# schema, fmt, init


def schema() -> None:
    """Print the JSON Schema of fleet files, for editors.

    Put it beside your files and begin each with: # yaml-language-server: $schema=fleet.schema.json
    """
    typer.echo(_schema_text(), nl=False)


def _schema_text() -> str:
    from kwokfleet.core import validation

    return json.dumps(validation.schema(), indent=2) + "\n"


def format_files(
    paths: Paths = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; show what would change.")] = False,
) -> None:
    """Write fleet files in one style; comments, order and quotes stay."""
    from kwokfleet.core import formatting
    from kwokfleet.edge import files

    changed = 0
    refused: list[Problem] = []
    for path in paths or [default_path()]:
        snapshot = files.read(path)
        refused += snapshot.problems
        for file in snapshot.files:
            if file.path.endswith(".json"):
                continue
            made = formatting.formatted(file.path, file.text)
            if not isinstance(made, str):
                refused.append(made)
            elif made != file.text:
                changed += 1
                _formatted(file, made, write=not (check or diff), diff=diff)
    for problem in refused:
        output.print_line(str(problem))
    output.print_line(f"{_count(changed, 'file')} {'would be ' if check or diff else ''}formatted")
    if refused:
        raise typer.Exit(errors.ExitCode.INPUT)
    if changed and (check or diff):
        raise typer.Exit(errors.ExitCode.NO)


def _formatted(file: "files.File", made: str, *, write: bool, diff: bool) -> None:
    if write:
        from kwokfleet.edge import files

        files.write(Path(file.path), made)
    if diff:
        import difflib

        lines = difflib.unified_diff(
            file.text.splitlines(keepends=True), made.splitlines(keepends=True), file.path, file.path
        )
        typer.echo("".join(lines), nl=False)
    else:
        typer.echo(file.path)


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to put it.")] = Path(),
) -> None:
    """Write a starter tree: a fleet file to change, how kwok runs, and the schema for your editor."""
    from kwokfleet.edge import files, library

    texts = {
        folder / "fleets" / "quickstart.yaml": library.example("quickstart"),
        folder / "fleets" / "kwok-controller.yaml": library.example("kwok-controller"),
        folder / SCHEMA_FILE: _schema_text(),
    }
    there = [str(path) for path in texts if path.exists()]
    if there:
        raise errors.NotOursError(
            f"{there[0]} is there already", hint="name an empty folder, or move it away; nothing was written"
        )
    for path, text in texts.items():
        files.write(path, text.replace("$schema=../docs/", "$schema=../"))
        typer.echo(str(path))
    where = "" if folder == Path() else f" {folder / 'fleets'}"
    output.print_line(f"next: {output.program()} validate{where}, then {output.program()} render{where}")
