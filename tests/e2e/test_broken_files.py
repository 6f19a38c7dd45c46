"""Files with one mistake each, the ones that people make: every one is found, at its line, in words that help.

Each file in tests/broken says itself what must be reported: the line that ends in `# <- RULE` is where, RULE is
what. A file without such a line is a good one that others refer to.
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
LEAST = 200
"""Files in the corpus; a guard, so that it cannot vanish."""
NO_COMMENT = {
    "encoding-utf-16.yaml": (1, "not-utf-8", "error"),
    "trace-bad-line/arrivals.csv": (4, "bad-trace", "warning"),
    "trace-empty/arrivals.csv": (1, "bad-trace", "error"),
    "trace-missing-field/arrivals.csv": (3, "bad-trace", "warning"),
    "trace-swf/jobs.swf": (3, "bad-trace", "warning"),
    "trace-without-at/arrivals.csv": (1, "bad-trace", "error"),
    "type-text-for-a-number-in-json.json": (5, "invalid-value", "error"),
}
"""Line, rule and severity for files that can hold no comment."""
REMEDY_IS_IN_THE_SENTENCE = {"invalid-value", "invalid-template", "stage-wrong-type"}
"""Rules whose sentence says what must be there; others need a hint beside it."""

Report = dict[str, Any]
Place = tuple[str, int, int]


class Mark(NamedTuple):
    """What a file says that must be reported."""

    line: int
    rule: str
    severity: str


def marks(path: Path) -> list[Mark]:
    """Return what must be reported in a file."""
    name = str(path.relative_to(ROOT / FOLDER))
    if name in NO_COMMENT:
        return [Mark(*NO_COMMENT[name])]
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        match = re.search(rb"<([-~]) ([a-z0-9-]+)$", line)
        if match:
            found.append(Mark(number, match[2].decode(), "error" if match[1] == b"-" else "warning"))
    return found


FILES = {
    str(path.relative_to(ROOT / FOLDER)): marks(path) for path in sorted((ROOT / FOLDER).rglob("*")) if path.is_file()
}
ERRORS = {name: [mark for mark in found if mark.severity == "error"] for name, found in FILES.items()}
BROKEN = {name: found for name, found in ERRORS.items() if found}
GOOD = sorted(set(FILES) - set(BROKEN))


def validate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program on the whole corpus."""
    command = [sys.executable, "-m", "kwokfleet", "validate", FOLDER, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """Validate the corpus once, for all tests."""
    return validate("-o", "json")


@pytest.fixture(scope="module")
def report(done: subprocess.CompletedProcess[str]) -> Report:
    """Return what was found."""
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def found(report: Report) -> Callable[[str, str], list[Report]]:
    """Return what was found in a file of the corpus."""

    def inside(name: str, severity: str) -> list[Report]:
        path = f"{FOLDER}/{name}"
        return [each for each in report["problems"] if (each["path"], each["severity"]) == (path, severity)]

    return inside


def test_wrong_files_are_exit_code_2(done: subprocess.CompletedProcess[str]) -> None:
    """One run says all, and no file brings the program down."""
    assert (done.returncode, done.stderr) == (2, "")


def test_the_corpus_is_there() -> None:
    """Hundreds of files with one mistake each, and a few good ones."""
    assert len(BROKEN) >= LEAST
    assert all(len(expected) == 1 for expected in BROKEN.values())
    assert GOOD


@pytest.mark.parametrize("name", BROKEN)
def test_one_mistake_is_one_error_at_its_line(name: str, found: Callable[[str, str], list[Report]]) -> None:
    """Not two for one mistake, and not somewhere else."""
    errors = found(name, "error")
    assert [(each["line"], each["rule"]) for each in errors] == [(mark.line, mark.rule) for mark in BROKEN[name]]


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_says_what_to_do(name: str, found: Callable[[str, str], list[Report]]) -> None:
    """A sentence of one line, and a remedy in it or beside it."""
    for each in found(name, "error"):
        assert each["what"].strip()
        assert "\n" not in each["what"] + each["hint"]
        assert each["hint"] or each["rule"] in REMEDY_IS_IN_THE_SENTENCE


@pytest.mark.parametrize("name", [name for name in BROKEN if "misspelt" in name])
def test_what_is_misspelt_is_answered_with_the_nearest(name: str, found: Callable[[str, str], list[Report]]) -> None:
    """Whoever mistypes a name sees the right one."""
    [error] = found(name, "error")
    assert "did you mean" in error["hint"] or "NoSchedule" in error["what"] + error["hint"]


@pytest.mark.parametrize("name", GOOD)
def test_good_files_among_broken_ones_have_no_error(name: str, found: Callable[[str, str], list[Report]]) -> None:
    """What is wrong elsewhere is not held against them."""
    assert found(name, "error") == []


def test_warnings_are_where_the_files_say(report: Report) -> None:
    """What can be used, and is probably not what was meant, is told apart from errors."""
    warned = {
        (each["path"], each["line"], each["rule"]) for each in report["problems"] if each["severity"] == "warning"
    }
    expected = {
        (f"{FOLDER}/{name}", mark.line, mark.rule)
        for name, found in FILES.items()
        for mark in found
        if mark.severity == "warning"
    }
    assert expected
    assert expected <= warned


def test_what_is_right_still_loads(report: Report) -> None:
    """A broken file costs nobody else a Fleet; one with an error is not called usable."""
    good = ["good-byte-order-mark", "good-quoted"]
    traces = ["trace-bad-line", "trace-missing-field", "trace-swf"]
    assert report["fleets"] == ["expect-what-cannot-be", *good, *traces, "two-networks-first"]
    assert report["ok"] is False
    assert report["files"] >= LEAST


def places(report: Report) -> set[Place]:
    """Return where something was found."""
    return {(each["path"], each["line"], each["column"]) for each in report["problems"]}


def test_text_is_one_line_for_each_problem(report: Report) -> None:
    """`path:line:column: field: what; hint`: editors and people can both jump there."""
    lines = validate().stdout.splitlines()
    assert lines == [_line(each) for each in report["problems"]]


def _line(problem: Report) -> str:
    place = f"{problem['path']}:{problem['line']}:{problem['column']}"
    said = f"{problem['what']}; {problem['hint']}" if problem["hint"] else problem["what"]
    severity = "warning" if problem["severity"] == "warning" else ""
    return ": ".join(part for part in (place, severity, problem["field"], said) if part)


def test_github_is_told_the_same_places(report: Report) -> None:
    """One workflow command for each problem."""
    lines = validate("-o", "github").stdout.splitlines()
    command = re.compile(r"::(?:error|warning) file=(.+),line=(\d+),col=(\d+),title=[a-z0-9-]+::.+")
    matches = [command.fullmatch(line) for line in lines]
    assert all(matches)
    assert {(match[1], int(match[2]), int(match[3])) for match in matches if match} == places(report)


def test_sarif_names_the_same_places(report: Report) -> None:
    """A log as code scanning takes it: version, tool, rules, and for each result its place."""
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
