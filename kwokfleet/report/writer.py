"""Writes reports of Runs in all formats."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors
from kwokfleet.measure import result as results
from kwokfleet.measure import result_store
from kwokfleet.measure.result import PodTimes, Result, WorkloadTimes
from kwokfleet.measure.result_store import StoredResult
from kwokfleet.report import clusterloader2, csv_tables, junit, kube_burner, numbers
from kwokfleet.report.html import page as report_html

_ASSETS = Path(__file__).parent / "html" / "assets"


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A Run to report. Pods and workloads can be iterated repeatedly."""

    result: Result
    pods: Iterable[PodTimes] = ()
    workloads: Iterable[WorkloadTimes] = ()


def stored_input(stored: StoredResult) -> ReportInput:
    """Return the ReportInput of a stored Run."""
    return ReportInput(stored.result(), stored.pods(), stored.workloads())


def input_from_path(path: Path) -> ReportInput:
    """Return the Run of a folder or a Result file, with the pods beside it."""
    folder = path if path.is_dir() else path.parent
    result = result_store.load(path)
    if path.name not in (result_store.RESULT, folder.name):
        return ReportInput(result)
    stored = StoredResult(folder, result.fleet, result.wave, result.run, result.start)
    return ReportInput(result, stored.pods(), stored.workloads())


def html_page(runs: Sequence[ReportInput], *, compare: bool = False) -> str:
    """Return one HTML page for all Runs. Runs of a Wave, or all with *compare*, are compared with the first."""
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return report_html.page([(run.result, run.pods) for run in runs], style, script, compare=compare)


def write_all(inputs: Iterable[ReportInput], folder: Path) -> list[Path]:
    """Write all formats into a folder; return the files.

    report.html and junit.xml; clusterloader2/ and kube-burner/ in the formats of these tools; json/ and csv/.
    """
    runs = sorted(inputs, key=lambda run: run.result.start)
    files = itertools.chain(_summary_files(runs), *map(_run_files, runs))
    return [_write(folder / name, text) for name, text in files]


def _summary_files(runs: Sequence[ReportInput]) -> Iterator[tuple[str, Iterable[str]]]:
    results = [run.result for run in runs]
    if runs:
        yield "report.html", [html_page(runs)]
    yield "junit.xml", [junit.to_xml(results)]
    yield "clusterloader2/junit.xml", [junit.to_xml(results, junit.CLUSTERLOADER2_SUITE)]
    yield "csv/latencies.csv", csv_tables.latencies(results)


def _run_files(run: ReportInput) -> Iterator[tuple[str, Iterable[str]]]:
    name = numbers.identifier(run.result)
    yield f"json/{name}.json", [results.serialize(run.result)]
    yield f"csv/pods-{name}.csv", csv_tables.pods(run.pods)
    if run.result.series:
        yield f"csv/series-{name}.csv", csv_tables.series(run.result.series)
    for file, text in clusterloader2.files(run.result, run.workloads).items():
        yield f"clusterloader2/{file}", [text]
    for file, parts in kube_burner.files(run.result, run.pods, run.workloads).items():
        yield f"kube-burner/{file}", parts


def _write(file: Path, parts: Iterable[str]) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", encoding="utf-8", newline="") as out:
            out.writelines(parts)
    except OSError as error:
        raise errors.HostError(
            f"cannot write {error.filename or file}: {error.strerror}", hint="choose another --report-dir"
        ) from error
    return file
