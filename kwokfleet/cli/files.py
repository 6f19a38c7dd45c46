"""Commands that need no cluster: init, validate, schema, fmt. Also the loading of files for other commands."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
        help="Fleet files or folders; - for standard input. Default: fleets/, else the current folder.",
    ),
]
OnePath = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="A fleet file or a folder. Default: fleets/, else the current folder."),
]

ProblemFormat = Literal["text", "json", "github", "sarif"]


def default_path() -> Path:
    """Return the default folder of fleet files: fleets/, else the current folder."""
    return Path("fleets") if Path("fleets").is_dir() else Path()


def load(file_loader: "loader.Loader", path: Path) -> "loader.Loaded":
    """Load a path; raise if it contains no fleet file."""
    loaded = file_loader.load(path)
    if not loaded.snapshot.files and not loaded.problems:
        raise errors.InputError(
            f"no fleet file in {path}", hint="name a folder with *.yaml files, or create one: kwokfleet init"
        )
    return loaded


def validate(
    paths: Paths = None,
    report: Annotated[ProblemFormat, typer.Option("--output", "-o", help="Output format.")] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
) -> None:
    """Check fleet files; print all problems with their lines.

    Needs no cluster. Exits with 2 if there are errors.
    """
    gc.disable()  # a short process that keeps nearly all its objects
    from kwokfleet.documents import problems
    from kwokfleet.source import loader

    file_loader = loader.Loader()
    loaded = [load(file_loader, path) for path in paths or [default_path()]]
    all_problems = sorted({problem for tree in loaded for problem in tree.problems})
    fleets = sorted(fleet.name for tree in loaded for fleet in tree.tree.fleets)
    file_count = sum(len(tree.snapshot.files) for tree in loaded)
    is_invalid = bool(problems.errors(all_problems) or (strict and all_problems))
    _print_problems(report, all_problems, {"ok": not is_invalid, "files": file_count, "fleets": fleets})
    if report == "text":
        output.print_line(_summary(all_problems, file_count, len(fleets)))
    if is_invalid:
        raise typer.Exit(errors.ExitCode.INPUT)


def _print_problems(report: ProblemFormat, problems: "list[Problem]", summary: dict[str, object]) -> None:
    if report == "text":
        use_color = output.use_color()
        for problem in problems:
            typer.echo(problem_line(problem, use_color=use_color))
        return
    from kwokfleet.validate import problem_formats

    if report == "json":
        typer.echo(problem_formats.to_json(problems, summary))
    elif report == "sarif":
        typer.echo(problem_formats.to_sarif(problems, kwokfleet.__version__))
    elif problems:
        typer.echo(problem_formats.to_github(problems))


def problem_line(problem: "Problem", *, use_color: bool = False) -> str:
    """Return a Problem as one line; warnings are marked."""
    from kwokfleet.documents import problems

    text = str(problem)
    location = f"{problem.path}:{problem.line}:{problem.column}: "
    rest = text.removeprefix(location)
    is_warning = problem.severity is problems.Severity.WARNING
    if use_color:
        location = typer.style(location, bold=True)
        rest = (typer.style("warning: ", fg=typer.colors.YELLOW) if is_warning else "") + rest
        return location + rest
    return f"{location}warning: {rest}" if is_warning else text


def _summary(all_problems: "list[Problem]", file_count: int, fleet_count: int) -> str:
    from kwokfleet.documents import problems

    error_count = len(problems.errors(all_problems))
    warning_count = len(all_problems) - error_count
    loaded = f"{count(file_count, 'file')}, {count(fleet_count, 'valid Fleet' if error_count else 'Fleet')}"
    counts = [count(number, noun) for number, noun in ((error_count, "error"), (warning_count, "warning")) if number]
    return f"{loaded}: {' and '.join(counts) or 'no problems'}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def require_valid(loaded: "loader.Loaded") -> None:
    """Print the problems of the files; raise if there are errors."""
    output.print_lines(map(problem_line, loaded.problems))
    if not loaded.usable:
        raise errors.InputError("the fleet files have errors", hint="fix the lines above")


def read_objects(path: Path, hint: str = "create it with: kubectl get nodes -o json") -> "list[Manifest]":
    """Read the objects of a file written by kubectl: JSON or YAML, a List or one object."""
    from kwokfleet.documents import parser

    try:
        content = path.read_bytes()
        is_json = content.lstrip()[:1] in (b"{", b"[")
        values = [json.loads(content)] if is_json else []
        documents, problems = ([], []) if is_json else parser.parse(str(path), content.decode())
    except (OSError, ValueError) as error:
        raise errors.InputError(f"cannot read {path} as JSON or YAML: {error}", hint=hint) from error
    if problems:
        raise errors.InputError(f"{path} is not valid YAML: {problems[0]}", hint=hint)
    values += [document.value for document in documents]
    manifests = [item for value in values for item in _items(value)]
    if not all(_is_object(manifest) for manifest in manifests):
        raise errors.InputError(f"{path} does not contain Kubernetes objects", hint=hint)
    return manifests


def _items(value: object) -> "list[Manifest]":
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        kind = str(value.get("kind", "")).removesuffix("List")
        defaults = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
        return [{**defaults, **item} if isinstance(item, dict) else {} for item in value["items"]]
    return [value] if isinstance(value, dict) else [{}]


def _is_object(value: "Manifest") -> bool:
    metadata = value.get("metadata")
    return bool(value.get("kind") and value.get("apiVersion")) and isinstance(metadata, dict) and "name" in metadata


def schema() -> None:
    """Print the JSON Schema of fleet files, for editors.

    Save it beside your files, and start each file with: # yaml-language-server: $schema=fleet.schema.json
    """
    typer.echo(_schema_text(), nl=False)


def _schema_text() -> str:
    from kwokfleet.api import decode

    return json.dumps(decode.json_schema(), indent=2) + "\n"


def format_files(
    paths: Paths = None,
    check: Annotated[bool, typer.Option("--check", help="Do not write; exit with 1 if a file would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Do not write; show the changes.")] = False,
) -> None:
    """Format fleet files. Comments, order and quotes stay."""
    from kwokfleet.documents import formatter
    from kwokfleet.source import files

    changed = 0
    problems: list[Problem] = []
    for path in paths or [default_path()]:
        snapshot = files.read(path)
        problems += snapshot.problems
        for file in snapshot.files:
            if file.path.endswith(".json") or (path.is_dir() and not formatter.should_format(file.path, file.text)):
                continue
            formatted = formatter.format_text(file.path, file.text)
            if not isinstance(formatted, str):
                problems.append(formatted)
            elif str(path) == files.STANDARD_INPUT and not (check or diff):
                typer.echo(formatted, nl=False)
            elif formatted != file.text:
                changed += 1
                if not (check or diff):
                    files.write(Path(file.path), formatted)
                typer.echo(_unified_diff(file, formatted) if diff else f"{file.path}\n", nl=False)
    output.print_lines(map(str, problems))
    output.print_line(f"{count(changed, 'file')} {'would be ' if check or diff else ''}formatted")
    if problems:
        raise typer.Exit(errors.ExitCode.INPUT)
    if changed and (check or diff):
        raise typer.Exit(errors.ExitCode.NO)


def _unified_diff(file: "files.File", formatted: str) -> str:
    import difflib

    before, after = (text.splitlines(keepends=True) for text in (file.text, formatted))
    return "".join(difflib.unified_diff(before, after, file.path, file.path))


def init(folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Target folder.")] = Path()) -> None:
    """Create example files: a fleet, a KwokController, and the schema for your editor."""
    from kwokfleet.source import files, shipped_files

    texts = {
        folder / "fleets" / "quickstart.yaml": shipped_files.example("quickstart"),
        folder / "fleets" / "kwok-controller.yaml": shipped_files.example("kwok-controller"),
        folder / SCHEMA_FILE: _schema_text(),
    }
    existing = [str(path) for path in texts if path.exists()]
    if existing:
        raise errors.NotOursError(
            f"{existing[0]} already exists; nothing was written", hint="use an empty folder, or move the file"
        )
    for path, text in texts.items():
        files.write(path, text.replace("$schema=../docs/", "$schema=../"))
        typer.echo(str(path))
    where = "" if folder == Path() else f" {folder / 'fleets'}"
    output.print_line(f"next: {output.program()} validate{where}, then {output.program()} render{where}")
