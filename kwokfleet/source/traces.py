"""Parses traces: CSV with a column `at`, or the Standard Workload Format."""

import csv
import math
import re

from kwokfleet.documents.problems import Problem, Severity, errors
from kwokfleet.render.workloads import RecordedArrivals

_SWF_COLUMNS = {
    "job": 0, "waited": 2, "seconds": 3, "procs": 4, "requested_procs": 7, "requested_seconds": 8,
    "requested_memory": 9, "user": 11, "group": 12, "application": 13, "queue": 14, "partition": 15,
}  # fmt: skip
_SWF_FIELDS = 18
_SUBMITTED = 1
_SKIPPED = "fix or remove the line; it is skipped"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(path: str, text: str, form: str) -> tuple[RecordedArrivals | None, list[Problem]]:
    """Return the arrivals in *text*, and a Problem for each invalid line; the others are used."""
    rows, problems = _swf(path, text) if form == "swf" else _csv(path, text)
    if not rows:
        empty = Problem(path, 1, 1, "", "contains no arrivals", "add some", rule="bad-trace")
        return None, problems if errors(problems) else [*problems, empty]
    rows.sort(key=lambda row: row[0])
    return RecordedArrivals(tuple(row[0] for row in rows), tuple(row[1] for row in rows)), problems


_Rows = list[tuple[float, dict[str, object]]]


def _csv(path: str, text: str) -> tuple[_Rows, list[Problem]]:
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    try:
        lines = [(reader.line_num, fields) for fields in reader]
    except csv.Error as error:  # e.g. a field that is too large, because its quote is not closed
        return [], [Problem(path, reader.line_num, 1, "", f"not CSV: {error}", "fix the line", rule="bad-trace")]
    header = [name.strip() for name in lines[0][1]] if lines else []
    bad = [name for name in header if not _NAME.fullmatch(name)]
    if "at" not in header or bad or len(set(header)) < len(header):
        what = f"{bad[0]!r} is not a valid variable name" if bad else "needs a column `at`, and unique column names"
        return [], [Problem(path, 1, 1, "", what, "start with a header like at,seconds,gpus", rule="bad-trace")]
    rows: _Rows = []
    problems: list[Problem] = []
    for number, fields in lines[1:]:
        if not fields:
            continue
        values: dict[str, object] = dict(zip(header, map(_as_written, fields), strict=False))
        at = _value(str(values.pop("at", "")))
        if len(fields) != len(header) or not isinstance(at, int | float) or at < 0:
            what = f"not an arrival: {len(header)} fields expected, `at` in seconds"
            problems.append(Problem(path, number, 1, "", what, _SKIPPED, Severity.WARNING, "bad-trace"))
            continue
        rows.append((float(at), values))
    return rows, problems


def _swf(path: str, text: str) -> tuple[_Rows, list[Problem]]:
    rows: _Rows = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith(";"):
            continue
        fields = [_value(field) for field in line.split()]
        numbers = [field for field in fields if isinstance(field, int | float)]
        if len(numbers) != _SWF_FIELDS:
            what = f"not a job: {_SWF_FIELDS} numbers expected"
            problems.append(Problem(path, number, 1, "", what, _SKIPPED, Severity.WARNING, "bad-trace"))
        elif numbers[_SWF_COLUMNS["seconds"]] <= 0 or numbers[_SWF_COLUMNS["procs"]] <= 0:
            what = "the job did not run or used no processor"
            problems.append(Problem(path, number, 1, "", what, "it is skipped", Severity.WARNING, "trace-row-skipped"))
        else:
            rows.append((float(numbers[_SUBMITTED]), {name: numbers[at] for name, at in _SWF_COLUMNS.items()}))
    first = min((at for at, _ in rows), default=0.0)
    return [(at - first, row) for at, row in rows], problems


def _as_written(text: str) -> int | float | str:
    """Return a number only if it prints the same: 007 and 3.10 stay texts."""
    value = _value(text)
    return value if str(value) == text.strip() else text.strip()


def _value(text: str) -> int | float | str:
    text = text.strip()
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
