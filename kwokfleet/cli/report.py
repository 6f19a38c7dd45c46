"""`kwokfleet report`: stored results of Runs, and comparisons of two Runs."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.core

from kwokfleet import errors
from kwokfleet.cli import output, run

if TYPE_CHECKING:
    from kwokfleet.measure import compare
    from kwokfleet.measure.result import Result
    from kwokfleet.measure.result_store import ResultStore, StoredResult
    from kwokfleet.report import writer

_START_DAEMON = "kwokfleet run runs waves and stores their results"
_PARTS = 3
"""Fleet, Wave, Run."""

ReportFormat = Literal["table", "json", "csv", "clusterloader2", "kube-burner", "junit", "html"]

ComparisonFormat = Literal["table", "json", "markdown", "html"]


class _ShowUnlessNamed(typer.core.TyperGroup):
    """A command group whose first argument may be a Fleet instead of a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  # typer's own click has no public names
        """Return `diff` if the first argument is that, else `show`."""
        if args[:1] == ["diff"]:
            return super().resolve_command(ctx, args)
        return "", self.get_command(ctx, "show"), args

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # the same
        """Pass all options to the command."""
        return super().parse_args(ctx, ["--", *(args or [""])])


app = typer.Typer(cls=_ShowUnlessNamed, help="Show results of Runs, or compare two Runs.")

ResultsDir = Annotated[Path | None, typer.Option(help="Folder of results. [default: results in the data folder]")]


@app.command()
def show(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FLEET [WAVE [RUN]]]", help="Name of a Fleet, Wave or Run; or a result.json or its folder."
        ),
    ] = None,
    form: Annotated[ReportFormat, typer.Option("--output", "-o", help="Output format.")] = "table",
    report_dir: Annotated[
        Path | None, typer.Option(help="Write all formats to this folder instead of printing.")
    ] = None,
    results_dir: ResultsDir = None,
) -> None:
    """Show the results of Runs: the latest Run of a WAVE, one RUN, or a list of all.

    `kwokfleet report diff A B` compares two Runs. For a Fleet with the name diff, write `kwokfleet report diff/`.
    """
    from kwokfleet.report import writer

    arguments = [name for name in names or () if name]
    store = _result_store(results_dir)
    runs, one = _select_runs(arguments, store)
    if report_dir is not None:
        written = writer.write_all(runs, report_dir)
        output.print_line(f"wrote {len(written)} files about {len(runs)} Runs to {report_dir}; open report.html")
    elif not runs and form == "table":
        output.print_line(f"no results in {store.root}: {_START_DAEMON}")
    elif one:
        _print_one(runs[0], form)
    else:
        _print_many(runs, form)


def _result_store(results_dir: Path | None) -> "ResultStore":
    from kwokfleet.measure.result_store import ResultStore

    return ResultStore(results_dir or run.default_results_dir())


def _split(names: Sequence[str]) -> list[str]:
    """Return Fleet, Wave and Run, written as separate arguments or with slashes."""
    parts = [part for name in names for part in name.split("/") if part]
    if len(parts) > _PARTS:
        raise errors.InputError(
            f"{' '.join(names)!r} is neither a file nor FLEET WAVE RUN", hint="list all Runs: kwokfleet report"
        )
    return parts


def _select_runs(arguments: Sequence[str], store: "ResultStore") -> "tuple[list[writer.ReportInput], bool]":
    """Return the selected Runs, and whether the arguments name exactly one: a path, a Run, or the latest of a Wave."""
    from kwokfleet.report import writer

    if len(arguments) == 1 and _is_path(arguments[0], store):
        return [writer.input_from_path(Path(arguments[0]))], True
    parts = _split(arguments)
    stored = store.find(*parts)
    if parts and not stored:
        known = ", ".join(dict.fromkeys(f"{result.fleet}/{result.wave}" for result in store.find())) or "none"
        raise errors.InputError(
            f"no results of {'/'.join(parts)} in {store.root}; stored: {known}",
            hint="list all Runs: kwokfleet report; another folder: --results-dir",
        )
    is_single = len(parts) > 1
    runs = list(itertools.islice(_readable(stored), 1 if is_single else None))
    return runs, is_single and bool(runs)


def _readable(stored: "Sequence[StoredResult]") -> "Iterator[writer.ReportInput]":
    """Yield readable Runs; skip the others with a note."""
    from kwokfleet.report import writer

    for result in stored:
        try:
            yield writer.stored_input(result)
        except errors.InputError as error:
            output.print_line(f"note: skipped: {error}")


def _is_path(name: str, store: "ResultStore") -> bool:
    """Return whether a name is a file or folder; a Fleet with results has priority."""
    return Path(name).exists() and ("/" in name or not (store.root / name).is_dir())


def _print_one(run: "writer.ReportInput", form: ReportFormat) -> None:
    from kwokfleet.cli import plan_view, report_view
    from kwokfleet.measure import result
    from kwokfleet.report import clusterloader2, csv_tables, kube_burner

    if form == "table":
        plan_view.echo(report_view.lines(run.result))
    elif form == "json":
        typer.echo(result.serialize(run.result), nl=False)
    elif form == "csv":
        _print_parts(csv_tables.pods(run.pods))
    elif form == "clusterloader2":
        _print_files({name: [text] for name, text in clusterloader2.files(run.result, run.workloads).items()})
    elif form == "kube-burner":
        _print_files(kube_burner.files(run.result, run.pods, run.workloads))
    else:
        _print_many([run], form)


def _print_many(runs: "Sequence[writer.ReportInput]", form: ReportFormat) -> None:
    from kwokfleet.report import csv_tables, junit, writer

    results = [run.result for run in runs]
    if form == "table":
        typer.echo(output.table([_row(result) for result in results]))
    elif form == "json":
        typer.echo(json.dumps([result.model_dump(mode="json", by_alias=True) for result in results], indent=1))
    elif form == "csv":
        _print_parts(csv_tables.latencies(results))
    elif form == "junit":
        typer.echo(junit.to_xml(results), nl=False)
    elif form == "html":
        oldest_first = sorted(runs, key=lambda run: run.result.start)
        typer.echo(writer.html_page(oldest_first), nl=False)
    else:
        raise errors.InputError(
            f"--output {form} supports one Run, got {len(runs)}",
            hint="name one: FLEET WAVE; or write all to a folder: --report-dir DIR",
        )


def _row(result: "Result") -> dict[str, object]:
    from kwokfleet.report import numbers

    startup = numbers.main_latency(result, "podStartup")
    return {
        "fleet": result.fleet,
        "wave": result.wave,
        "run": result.run,
        "started": numbers.instant(result.start),
        "state": result.state,
        "objects": f"{result.objects.created:,}/{result.objects.total:,}",
        "podstartup p50": numbers.duration(startup.p50 if startup else None),
        "p99": numbers.duration(startup.p99 if startup else None),
        "verdict": numbers.verdict(result),
    }


def _print_files(files: "dict[str, Iterable[str]]") -> None:
    """Print several JSON files as one object, by file name."""
    before = "{\n"
    for name, parts in files.items():
        typer.echo(f"{before}{json.dumps(name)}: ", nl=False)
        _print_parts(parts)
        before = ", "
    typer.echo("}" if files else "{}")


def _print_parts(parts: Iterable[str]) -> None:
    for part in parts:
        typer.echo(part, nl=False)


@app.command()
def diff(  # noqa: PLR0913, PLR0917  # one for each option
    before: Annotated[str, typer.Argument(metavar="A", help="FLEET/WAVE/RUN, FLEET/WAVE, a result.json or a folder.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The Run to compare with A, in the same form.")],
    max_regression: Annotated[
        str, typer.Option(metavar="PERCENT", help="Largest relative difference that is not a regression.")
    ] = "10%",
    min_delta: Annotated[
        str, typer.Option(metavar="DURATION", help="Latency differences up to this are ignored as noise.")
    ] = "50ms",
    form: Annotated[ComparisonFormat, typer.Option("--output", "-o", help="Output format.")] = "table",
    results_dir: ResultsDir = None,
) -> None:
    """Compare two Runs: all latencies, throughputs and counts.

    Exits with 0 without regressions, 1 with regressions, 2 or more on errors.
    """
    from kwokfleet.measure import compare

    limits = _limits(max_regression, min_delta)
    store = _result_store(results_dir)
    runs = [_one(name, store) for name in (before, after)]
    comparison = compare.compare(runs[0].result, runs[1].result, limits)
    _print_comparison(comparison, limits, runs, form)
    raise typer.Exit(errors.ExitCode.NO if comparison.regressions else errors.ExitCode.DONE)


def _one(name: str, store: "ResultStore") -> "writer.ReportInput":
    runs, is_single = _select_runs([name], store)
    if not is_single:
        raise errors.InputError(
            f"{name!r} names {len(runs)} Runs; a comparison needs exactly one",
            hint="use FLEET/WAVE for the latest Run, or FLEET/WAVE/RUN",
        )
    return runs[0]


def _limits(max_regression: str, min_delta: str) -> "compare.RegressionLimits":
    from kwokfleet.api import units
    from kwokfleet.measure import compare

    try:
        return compare.RegressionLimits(units.percent(max_regression) / 100, units.duration(min_delta).total_seconds())
    except ValueError as error:
        raise errors.InputError(f"--max-regression {max_regression} --min-delta {min_delta}: {error}") from error


def _print_comparison(
    comparison: "compare.Comparison",
    limits: "compare.RegressionLimits",
    runs: "Sequence[writer.ReportInput]",
    form: ComparisonFormat,
) -> None:
    from kwokfleet.report import comparisons, writer

    if form == "json":
        typer.echo(comparisons.to_json(comparison))
    elif form == "markdown":
        typer.echo(comparisons.to_markdown(comparison, limits), nl=False)
    elif form == "html":
        typer.echo(writer.html_page(runs, compare=True), nl=False)
    else:
        typer.echo(output.table(list(comparisons.rows(comparison))))
        for note in comparison.notes:
            output.print_line(f"note: {note}")
        output.print_line(comparisons.summary(comparison, limits))
