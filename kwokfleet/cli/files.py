"""Commands that need only files: init, validate, schema, fmt; and what `render` shares with them."""

import gc
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import kwokfleet
from kwokfleet import errors
from kwokfleet.cli import output

if TYPE_CHECKING:
    from kwokfleet.documents.problems import Problem
    from kwokfleet.kube.objects import Manifest
    from kwokfleet.source import files, loader

SCHEMA_FILE = "fleet.schema.json"

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PATH]...",
        help="Fleet files or folders of them, - for standard input; fleets/ or this folder without it.",
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


class ProblemFormat(StrEnum):
    """How `validate` prints what it found."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def register(app: typer.Typer) -> None:
    """Add these commands to the program."""
    for command in (init, validate, schema):
        app.command()(command)
    app.command(name="fmt")(format_files)


def default_path() -> Path:
    """Return where fleet files are when nobody says: fleets/, else here."""
    return Path("fleets") if Path("fleets").is_dir() else Path()


def load(file_loader: "loader.Loader", path: Path) -> "loader.Loaded":
    """Load a path; one without a single file is a mistake, not an empty wish."""
    loaded = file_loader.load(path)
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
        ProblemFormat, typer.Option("--output", "-o", help="How to print what was found.")
    ] = ProblemFormat.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings count as errors.")] = False,
) -> None:
    """Check fleet files: all problems of all files at once, each with its line.

    Needs no cluster. Exits 2 if anything is wrong.
    """
    gc.disable()  # this process makes many small things, drops none, and ends
    from kwokfleet.documents import problems
    from kwokfleet.source import loader

    file_loader = loader.Loader()
    loaded = [load(file_loader, path) for path in paths or [default_path()]]
    found = sorted({problem for each in loaded for problem in each.problems})
    fleets = sorted(fleet.name for each in loaded for fleet in each.tree.fleets)
    files = sum(len(each.snapshot.files) for each in loaded)
    wrong = bool(problems.errors(found) or (strict and found))
    _print_report(report, found, {"ok": not wrong, "files": files, "fleets": fleets})
    if report is ProblemFormat.TEXT:
        output.print_line(_summary(found, files, len(fleets)))
    if wrong:
        raise typer.Exit(errors.ExitCode.INPUT)


def _print_report(report: ProblemFormat, found: "list[Problem]", summary: dict[str, object]) -> None:
    if report is ProblemFormat.TEXT:
        coloured = sys.stdout.isatty() and output.read_settings().color
        for problem in found:
            typer.echo(problem_line(problem, coloured=coloured))
        return
    from kwokfleet.validate import problem_formats

    if report is ProblemFormat.JSON:
        typer.echo(problem_formats.to_json(found, summary))
    elif report is ProblemFormat.SARIF:
        typer.echo(problem_formats.to_sarif(found, kwokfleet.__version__))
    elif found:
        typer.echo(problem_formats.to_github(found))


def problem_line(problem: "Problem", *, coloured: bool = False) -> str:
    """Return a Problem as one line; a warning says that it is one."""
    from kwokfleet.documents import problems

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
    from kwokfleet.documents import problems

    wrong = len(problems.errors(found))
    warned = len(found) - wrong
    read = f"{count(files, 'file')}, {count(fleets, 'usable Fleet' if wrong else 'Fleet')}"
    said = [count(wrong, "error")] * bool(wrong) + [count(warned, "warning")] * bool(warned)
    return f"{read}: {' and '.join(said) or 'no problem'}"


def count(number: int, thing: str) -> str:
    """Return a number of things, in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def require_valid(loaded: "loader.Loaded") -> None:
    """Print what is wrong with the files; if it is more than warnings, stop."""
    for problem in loaded.problems:
        output.print_line(problem_line(problem))
    if not loaded.usable:
        raise errors.InputError("the fleet files have errors", hint="mend the lines above")


def read_objects(path: Path, hint: str = "make it with: kubectl get nodes -o json") -> "list[Manifest]":
    """Return the objects of a file that kubectl wrote: JSON or YAML, a List or one object."""
    from kwokfleet.documents import parser

    try:
        content = path.read_bytes()
        is_json = content.lstrip()[:1] in (b"{", b"[")
        values = [json.loads(content)] if is_json else []
        parsed, wrong = ([], []) if is_json else parser.parse(str(path), content.decode())
    except (OSError, ValueError) as error:
        raise errors.InputError(f"{path} cannot be read as JSON or YAML: {error}", hint=hint) from error
    if wrong:
        raise errors.InputError(f"{path} cannot be read as YAML: {wrong[0]}", hint=hint)
    values += [each.value for each in parsed]
    found = [item for value in values for item in _items(value)]
    if not all(_is_object(each) for each in found):
        raise errors.InputError(f"{path} does not hold Kubernetes objects", hint=hint)
    return found


def _items(value: object) -> "list[Manifest]":
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        kind = str(value.get("kind", "")).removesuffix("List")
        defaults = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
        return [{**defaults, **item} if isinstance(item, dict) else {} for item in value["items"]]
    return [value] if isinstance(value, dict) else [{}]


def _is_object(value: "Manifest") -> bool:
    metadata = value.get("metadata")
    return bool(value.get("kind") and value.get("apiVersion")) and isinstance(metadata, dict) and "name" in metadata


# ----------------------------------------------------------------------------------------
# schema, fmt, init


def schema() -> None:
    """Print the JSON Schema of fleet files, for editors.

    Put it beside your files and begin each with: # yaml-language-server: $schema=fleet.schema.json
    """
    typer.echo(_schema_text(), nl=False)


def _schema_text() -> str:
    from kwokfleet.api import decode

    return json.dumps(decode.json_schema(), indent=2) + "\n"


def format_files(
    paths: Paths = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a file would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; show what would change.")] = False,
) -> None:
    """Write fleet files in one style; comments, order and quotes stay."""
    from kwokfleet.documents import formatter
    from kwokfleet.source import files

    changed = 0
    refused: list[Problem] = []
    for path in paths or [default_path()]:
        snapshot = files.read(path)
        refused += snapshot.problems
        for file in snapshot.files:
            if file.path.endswith(".json") or (path.is_dir() and not formatter.should_format(file.path, file.text)):
                continue
            made = formatter.format_text(file.path, file.text)
            if not isinstance(made, str):
                refused.append(made)
            elif str(path) == files.STANDARD_INPUT and not (check or diff):
                typer.echo(made, nl=False)
            elif made != file.text:
                changed += 1
                _formatted(file, made, write=not (check or diff), diff=diff)
    for problem in refused:
        output.print_line(str(problem))
    output.print_line(f"{count(changed, 'file')} {'would be ' if check or diff else ''}formatted")
    if refused:
        raise typer.Exit(errors.ExitCode.INPUT)
    if changed and (check or diff):
        raise typer.Exit(errors.ExitCode.NO)


def _formatted(file: "files.File", made: str, *, write: bool, diff: bool) -> None:
    if write:
        from kwokfleet.source import files

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
    from kwokfleet.source import files, library

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
