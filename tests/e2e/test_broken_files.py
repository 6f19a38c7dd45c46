"""Files with one error each: every error is reported once, at its line, with a hint.

Each file in tests/broken declares its expected problem: the line ends in `# <- RULE`. A file without such a
line is valid; others refer to it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = "tests/broken"
MIN_FILES = 200
"""Minimum number of files in the corpus."""
NO_COMMENT = {
    "encoding-utf-16.yaml": (1, "not-utf-8", "error"),
    "trace-bad-line/arrivals.csv": (4, "bad-trace", "warning"),
    "trace-empty/arrivals.csv": (1, "bad-trace", "error"),
    "trace-missing-field/arrivals.csv": (3, "bad-trace", "warning"),
    "trace-swf/jobs.swf": (3, "bad-trace", "warning"),
    "trace-without-at/arrivals.csv": (1, "bad-trace", "error"),
    "type-text-for-a-number-in-json.json": (5, "invalid-value", "error"),
}
"""Line, rule and severity for files that cannot contain a comment."""
RULES_WITHOUT_HINT = {"invalid-value", "invalid-template", "stage-wrong-type"}
"""Rules whose message states the valid values; other rules need a hint."""

Report = dict[str, Any]
Place = tuple[str, int, int]


class Mark(NamedTuple):
    """An expected problem."""

    line: int
    rule: str
    severity: str


def marks(path: Path) -> list[Mark]:
    """Return the expected problems of a file."""
    name = str(path.relative_to(ROOT / FOLDER))
    if name in NO_COMMENT:
        return [Mark(*NO_COMMENT[name])]
    file_marks = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        match = re.search(rb"<([-~]) ([a-z0-9-]+)$", line)
        if match:
            file_marks.append(Mark(number, match[2].decode(), "error" if match[1] == b"-" else "warning"))
    return file_marks


FILES = {
    str(path.relative_to(ROOT / FOLDER)): marks(path) for path in sorted((ROOT / FOLDER).rglob("*")) if path.is_file()
}
ERRORS = {name: [mark for mark in file_marks if mark.severity == "error"] for name, file_marks in FILES.items()}
BROKEN = {name: file_marks for name, file_marks in ERRORS.items() if file_marks}
GOOD = sorted(set(FILES) - set(BROKEN))


def validate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Validate the whole corpus."""
    command = [sys.executable, "-m", "kwokfleet", "validate", FOLDER, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def completed() -> subprocess.CompletedProcess[str]:
    """Validate the corpus once, for all tests."""
    return validate("-o", "json")


@pytest.fixture(scope="module")
def report(completed: subprocess.CompletedProcess[str]) -> Report:
    """Return the JSON report."""
    return dict(json.loads(completed.stdout))


@pytest.fixture(scope="module")
def problems_of(report: Report) -> Callable[[str, str], list[Report]]:
    """Return a function that returns the problems of a file, by severity."""

    def inside(name: str, severity: str) -> list[Report]:
        path = f"{FOLDER}/{name}"
        return [problem for problem in report["problems"] if (problem["path"], problem["severity"]) == (path, severity)]

    return inside


def test_invalid_files_are_exit_code_2(completed: subprocess.CompletedProcess[str]) -> None:
    """One run reports all problems, without a crash."""
    assert (completed.returncode, completed.stderr) == (2, "")


def test_the_corpus_is_complete() -> None:
    """Hundreds of files with one error each, and a few valid ones."""
    assert len(BROKEN) >= MIN_FILES
    assert all(len(expected) == 1 for expected in BROKEN.values())
    assert GOOD


@pytest.mark.parametrize("name", BROKEN)
def test_one_mistake_is_one_error_at_its_line(name: str, problems_of: Callable[[str, str], list[Report]]) -> None:
    """No second error, and no other line."""
    errors = problems_of(name, "error")
    assert [(error["line"], error["rule"]) for error in errors] == [(mark.line, mark.rule) for mark in BROKEN[name]]


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_has_a_hint(name: str, problems_of: Callable[[str, str], list[Report]]) -> None:
    """The message has one line, and states the valid values or has a hint."""
    for error in problems_of(name, "error"):
        assert error["what"].strip()
        assert "\n" not in error["what"] + error["hint"]
        assert error["hint"] or error["rule"] in RULES_WITHOUT_HINT


@pytest.mark.parametrize("name", [name for name in BROKEN if "misspelt" in name])
def test_a_misspelt_name_has_a_suggestion(name: str, problems_of: Callable[[str, str], list[Report]]) -> None:
    """The nearest valid name."""
    [error] = problems_of(name, "error")
    assert "did you mean" in error["hint"] or "NoSchedule" in error["what"] + error["hint"]


@pytest.mark.parametrize("name", GOOD)
def test_valid_files_among_invalid_ones_have_no_error(
    name: str, problems_of: Callable[[str, str], list[Report]]
) -> None:
    """Errors belong to the file that contains them."""
    assert problems_of(name, "error") == []


def test_warnings_are_at_their_marks(report: Report) -> None:
    """Valid but suspicious values have the severity warning."""
    warned = {
        (problem["path"], problem["line"], problem["rule"])
        for problem in report["problems"]
        if problem["severity"] == "warning"
    }
    expected = {
        (f"{FOLDER}/{name}", mark.line, mark.rule)
        for name, file_marks in FILES.items()
        for mark in file_marks
        if mark.severity == "warning"
    }
    assert expected
    assert expected <= warned


def test_valid_files_are_loaded(report: Report) -> None:
    """Other files' errors do not affect them; a file with an error is not listed."""
    good = ["good-byte-order-mark", "good-quoted"]
    traces = ["trace-bad-line", "trace-missing-field", "trace-swf"]
    assert report["fleets"] == ["expect-what-cannot-be", *good, *traces, "two-networks-first"]
    assert report["ok"] is False
    assert report["files"] >= MIN_FILES


def places(report: Report) -> set[Place]:
    """Return the places of all problems."""
    return {(problem["path"], problem["line"], problem["column"]) for problem in report["problems"]}


def test_text_is_one_line_for_each_problem(report: Report) -> None:
    """`path:line:column: field: what; hint`, a format that editors parse."""
    lines = validate().stdout.splitlines()
    assert lines == [_line(problem) for problem in report["problems"]]


def _line(problem: Report) -> str:
    place = f"{problem['path']}:{problem['line']}:{problem['column']}"
    message = f"{problem['what']}; {problem['hint']}" if problem["hint"] else problem["what"]
    severity = "warning" if problem["severity"] == "warning" else ""
    return ": ".join(part for part in (place, severity, problem["field"], message) if part)


def test_github_commands_have_the_same_places(report: Report) -> None:
    """One workflow command for each problem."""
    lines = validate("-o", "github").stdout.splitlines()
    command = re.compile(r"::(?:error|warning) file=(.+),line=(\d+),col=(\d+),title=[a-z0-9-]+::.+")
    matches = [command.fullmatch(line) for line in lines]
    assert all(matches)
    assert {(match[1], int(match[2]), int(match[3])) for match in matches if match} == places(report)


def test_sarif_has_the_same_places(report: Report) -> None:
    """Version, tool, rules, and a place for each result."""
    log = json.loads(validate("-o", "sarif").stdout)
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    [run] = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "kwokfleet"
    assert set(_sarif_places(run)) == places(report)
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning"}
        assert result["message"]["text"]


def _sarif_places(run: Report) -> Iterator[Place]:
    for result in run["results"]:
        [location] = result["locations"]
        physical = location["physicalLocation"]
        region = physical["region"]
        yield physical["artifactLocation"]["uri"], region["startLine"], region["startColumn"]
