"""Reports of Runs: what is kept of them, in every format, printed or written into a folder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kwokfleet import errors
from kwokfleet.measure import result, result_store
from kwokfleet.measure.result import PodTimes, Result, WorkloadTimes
from kwokfleet.measure.result_store import StoredResult
from kwokfleet.report import clusterloader2, csv_tables, junit, kube_burner, numbers
from kwokfleet.report.html import page as report_html

_ASSETS = Path(__file__).parent / "html" / "assets"


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A Run as reports need it; pods and workloads can be gone through again and again."""

    result: Result
    pods: Iterable[PodTimes] = ()
    workloads: Iterable[WorkloadTimes] = ()


@dataclass(frozen=True, slots=True)
class _KeptPods:
    kept: StoredResult

    def __iter__(self) -> Iterator[PodTimes]:
        return self.kept.pods()


@dataclass(frozen=True, slots=True)
class _KeptWorkloads:
    kept: StoredResult

    def __iter__(self) -> Iterator[WorkloadTimes]:
        return self.kept.workloads()


ReportSource = StoredResult | ReportInput | tuple[Result, Iterable[PodTimes]]
"""What a report can be made of."""


def open_source(source: ReportSource) -> ReportInput:
    """Return a Run, wherever it comes from."""
    if isinstance(source, ReportInput):
        return source
    if isinstance(source, StoredResult):
        return ReportInput(source.result(), _KeptPods(source), _KeptWorkloads(source))
    made, pods = source
    return ReportInput(made, pods if isinstance(pods, Sequence) else list(pods))


def input_from_path(path: Path) -> ReportInput:
    """Return the Run that a folder, or a file with a Result in it, is about; its pods lie beside it."""
    folder = path if path.is_dir() else path.parent
    made = result_store.load(path)
    beside = StoredResult(folder, made.fleet, made.wave, made.run, made.start)
    return (
        ReportInput(made, _KeptPods(beside), _KeptWorkloads(beside))
        if path.name in (result_store.RESULT, folder.name)
        else ReportInput(made)
    )


def html_page(runs: Sequence[ReportSource], *, compare: bool = False) -> str:
    """Return one HTML page about any Runs; those of a Wave, or all, are compared with the first of them."""
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    look = report_html.PageAssets(style, script)
    return report_html.page([(each.result, each.pods) for each in map(open_source, runs)], look, compare=compare)


def write_all(kept: Sequence[ReportSource], folder: Path) -> list[Path]:
    """Write every format into a folder, and return the files.

    report.html, junit.xml; clusterloader2/ and kube-burner/ as those tools leave them; json/ and csv/ for programs.
    """
    runs = sorted(map(open_source, kept), key=lambda each: each.result.start)
    results = [each.result for each in runs]
    return [_write(folder / name, text) for name, text in _shared(runs, results)] + [
        _write(folder / name, text) for run in runs for name, text in _own(run)
    ]


def _shared(runs: Sequence[ReportInput], results: Sequence[Result]) -> Iterator[tuple[str, Iterable[str]]]:
    if runs:
        yield "report.html", [html_page(runs)]
    yield "junit.xml", [junit.to_xml(results)]
    yield "clusterloader2/junit.xml", [junit.to_xml(results, junit.CLUSTERLOADER2_SUITE)]
    yield "csv/latencies.csv", csv_tables.latencies(results)


def _own(run: ReportInput) -> Iterator[tuple[str, Iterable[str]]]:
    name = numbers.identifier(run.result)
    yield f"json/{name}.json", [result.serialize(run.result)]
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
            f"{error.filename or file} cannot be written: {error.strerror}", hint="choose another --report-dir"
        ) from error
    return file
