"""`kwokfleet report`, run as a user would, on results that somebody kept."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.harness import fork_server, html_page, sample_results

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with the results of three Runs, of two Waves, in their usual place."""
    kept = tmp_path / ".local/share/kwokfleet/results"
    sample_results.sample_run(60).store(kept)
    sample_results.sample_run(60, name="2", slower=1.5, at=sample_results.START + timedelta(hours=1)).store(kept)
    sample_results.sample_run(20, wave="pods", job=False).store(kept)
    return tmp_path


def run(home: Path, *arguments: str) -> fork_server.Done:
    """Run `kwokfleet report`."""
    return fork_server.run(["report", *arguments], {"HOME": str(home), "PATH": "/usr/bin:/bin"}, folder=home)


def ok(home: Path, *arguments: str) -> str:
    """Run it with success, and return what it printed."""
    done = run(home, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def folder(home: Path, number: int) -> str:
    """Return where a Run of the first Wave is kept."""
    [found] = (home / ".local/share/kwokfleet/results/lab/stress").glob(f"*-{number}")
    return str(found)


def test_all_runs_are_listed_the_latest_first(home: Path) -> None:
    """With their percentiles and verdicts."""
    head, *rows = ok(home).splitlines()
    assert head.split()[:5] == ["FLEET", "WAVE", "RUN", "STARTED", "STATE"]
    assert [row.split()[:3] for row in rows] == [["lab", "stress", "2"], ["lab", "stress", "1"], ["lab", "pods", "1"]]
    assert len(ok(home, "lab", "-o", "csv").splitlines()) > 10
    assert [each["run"] for each in json.loads(ok(home, "-o", "json"))] == ["2", "1", "1"]


def test_a_wave_stands_for_its_latest_run(home: Path) -> None:
    """And a Run for itself, however it is named."""
    assert ok(home, "lab", "stress").startswith("lab/stress/2 ")
    for name in (["lab", "stress", "1"], ["lab/stress/1"], [folder(home, 1)], [f"{folder(home, 1)}/result.json"]):
        assert ok(home, *name).startswith("lab/stress/1 "), name


def test_every_format_can_be_printed(home: Path) -> None:
    """Each is what its readers expect."""
    one = ("lab", "stress", "1")
    assert json.loads(ok(home, *one, "-o", "json"))["kind"] == "Result"
    assert len(ok(home, *one, "-o", "csv").splitlines()) == 61
    assert "PodStartupLatency_lab-stress-1-2026.json" in json.loads(ok(home, *one, "-o", "clusterloader2"))
    burned = json.loads(ok(home, *one, "-o", "kube-burner"))
    assert len(burned["podLatencyMeasurement-lab-stress-1.json"]) == 60
    assert ET.fromstring(ok(home, *one, "-o", "junit")).tag == "testsuites"  # noqa: S314 - our own text
    assert html_page.HtmlPage(ok(home, *one, "-o", "html")).outside == []


def test_a_folder_gets_every_format(home: Path) -> None:
    """One page, one JUnit file, and a folder for each kind of reader."""
    done = run(home, "--report-dir", "out")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "about 3 Runs to out" in done.stderr
    names = {str(file.relative_to(home / "out")) for file in (home / "out").rglob("*") if file.is_file()}
    assert {
        "report.html",
        "junit.xml",
        "clusterloader2/junit.xml",
        "clusterloader2/JobLifecycleLatency_lab-stress-1.json",
        "kube-burner/jobLatencyQuantilesMeasurement-lab-stress-2.json",
        "json/lab-pods-1.json",
        "csv/pods-lab-pods-1.csv",
        "csv/series-lab-stress-2.csv",
        "csv/latencies.csv",
    } <= names
    assert ok(home, "out/json/lab-pods-1.json").startswith("lab/pods/1 ")


def test_nothing_kept_is_no_error(tmp_path: Path) -> None:
    """It says where it looked, and how to get results; programs get an empty list."""
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "kwokfleet/results" in done.stderr
    assert json.loads(ok(tmp_path, "-o", "json")) == []


def test_a_run_that_is_not_there_is_named_with_those_that_are(home: Path) -> None:
    """So that a typing error is seen."""
    done = run(home, "lab", "stres")
    assert done.returncode == 2
    assert "no results of lab/stres" in done.stderr
    assert "lab/stress" in done.stderr


def test_a_run_without_a_result_hides_no_other(home: Path) -> None:
    """A daemon that was killed leaves notes; they are no Result yet."""
    (home / ".local/share/kwokfleet/results/lab/stress/20260303T080000Z-3").mkdir()
    done = run(home)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert "skipped" in done.stderr
    assert ok(home, "lab", "stress").startswith("lab/stress/2 ")


def test_what_is_no_result_is_refused_in_words(home: Path) -> None:
    """A file of something else, or none."""
    (home / "other.json").write_text('{"kind": "Pod"}')
    done = run(home, "./other.json")
    assert done.returncode == 2
    assert "is not a Result" in done.stderr


def test_diff_exits_by_what_got_worse(home: Path) -> None:
    """0 if nothing did, 1 if something did, 2 if it cannot be told; limits decide."""
    worse = run(home, "diff", "lab/stress/1", "lab/stress/2")
    assert worse.returncode == 1
    assert "podStartup p99" in worse.stdout
    assert "regressions above 10 % and 50 ms" in worse.stderr
    assert run(home, "diff", "lab/stress/1", folder(home, 1)).returncode == 0
    lenient = run(home, "diff", "lab/stress/1", "lab/stress", "--max-regression", "100%", "-o", "json")
    assert json.loads(lenient.stdout)["after"] == "lab/stress/2"
    judged = [each for each in json.loads(lenient.stdout)["deltas"] if each["verdict"] == "worse"]
    assert not any(each["name"] == "podStartup" for each in judged)
    for wrong in (
        ("lab/stress/1", "lab/stress/9"),
        ("lab", "lab/stress"),
        ("lab/stress", "lab/stress", "--min-delta", "1"),
    ):
        assert run(home, "diff", *wrong).returncode == 2, wrong


def test_diff_can_be_a_page_or_a_comment(home: Path) -> None:
    """For people who look at pull requests."""
    markdown = run(home, "diff", "lab/stress/1", "lab/stress/2", "-o", "markdown").stdout
    assert markdown.startswith("**kwokfleet:** ")
    page = html_page.HtmlPage(run(home, "diff", "lab/stress/1", "lab/pods/1", "-o", "html").stdout)
    assert "article" not in page.tags


def test_a_fleet_may_be_called_diff(home: Path) -> None:
    """With a slash it is no command."""
    made = sample_results.sample_run(5)
    there = home / ".local/share/kwokfleet/results"
    sample_results.SampleRun(made.result.model_copy(update={"fleet": "diff"}), made.pods, ()).store(there)
    assert ok(home, "diff/").splitlines()[1].startswith("diff ")
    assert ok(home, "diff/stress").startswith("diff/stress/1 ")


def test_a_terminal_without_unicode_gets_other_sparklines(home: Path) -> None:
    """And no colours without a terminal."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kwokfleet", "report", "lab", "stress"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.isascii()
    assert "running" in done.stdout
    assert "\x1b" not in done.stdout
    assert not ok(home, "lab", "stress").isascii()
