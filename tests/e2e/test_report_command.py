"""`kwokfleet report` on stored results."""

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
    """Return a home folder with the results of three Runs of two Waves."""
    results = tmp_path / ".local/share/kwokfleet/results"
    sample_results.sample_run(60).store(results)
    sample_results.sample_run(60, name="2", slower=1.5, at=sample_results.START + timedelta(hours=1)).store(results)
    sample_results.sample_run(20, wave="pods", job=False).store(results)
    return tmp_path


def run(home: Path, *arguments: str) -> fork_server.Done:
    """Run `kwokfleet report`."""
    return fork_server.run(["report", *arguments], {"HOME": str(home), "PATH": "/usr/bin:/bin"}, folder=home)


def ok(home: Path, *arguments: str) -> str:
    """Run it with success; return its standard output."""
    done = run(home, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def folder(home: Path, number: int) -> str:
    """Return the result folder of a Run of the first Wave."""
    [result_folder] = (home / ".local/share/kwokfleet/results/lab/stress").glob(f"*-{number}")
    return str(result_folder)


def test_all_runs_are_listed_the_latest_first(home: Path) -> None:
    """With percentiles and verdicts."""
    head, *rows = ok(home).splitlines()
    assert head.split()[:5] == ["FLEET", "WAVE", "RUN", "STARTED", "STATE"]
    assert [row.split()[:3] for row in rows] == [["lab", "stress", "2"], ["lab", "stress", "1"], ["lab", "pods", "1"]]
    assert len(ok(home, "lab", "-o", "csv").splitlines()) > 10
    assert [row["run"] for row in json.loads(ok(home, "-o", "json"))] == ["2", "1", "1"]


def test_a_wave_name_selects_its_latest_run(home: Path) -> None:
    """A Run can be named by its number or its folder."""
    assert ok(home, "lab", "stress").startswith("lab/stress/2 ")
    for name in (["lab", "stress", "1"], ["lab/stress/1"], [folder(home, 1)], [f"{folder(home, 1)}/result.json"]):
        assert ok(home, *name).startswith("lab/stress/1 "), name


def test_every_format_can_be_printed(home: Path) -> None:
    """In the format of each consumer."""
    arguments = ("lab", "stress", "1")
    assert json.loads(ok(home, *arguments, "-o", "json"))["kind"] == "Result"
    assert len(ok(home, *arguments, "-o", "csv").splitlines()) == 61
    assert "PodStartupLatency_lab-stress-1-2026.json" in json.loads(ok(home, *arguments, "-o", "clusterloader2"))
    kube_burner = json.loads(ok(home, *arguments, "-o", "kube-burner"))
    assert len(kube_burner["podLatencyMeasurement-lab-stress-1.json"]) == 60
    assert ET.fromstring(ok(home, *arguments, "-o", "junit")).tag == "testsuites"  # noqa: S314 - our own text
    assert html_page.HtmlPage(ok(home, *arguments, "-o", "html")).outside == []


def test_a_folder_gets_every_format(home: Path) -> None:
    """One HTML page, one JUnit file, and a folder for each tool."""
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


def test_no_stored_results_are_no_error(tmp_path: Path) -> None:
    """The message names the folder; JSON is an empty list."""
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "kwokfleet/results" in done.stderr
    assert json.loads(ok(tmp_path, "-o", "json")) == []


def test_an_unknown_run_is_an_error_with_the_existing_ones(home: Path) -> None:
    """So that a typing error is visible."""
    done = run(home, "lab", "stres")
    assert done.returncode == 2
    assert "no results of lab/stres" in done.stderr
    assert "lab/stress" in done.stderr


def test_an_incomplete_run_hides_no_other(home: Path) -> None:
    """A killed daemon leaves a folder without a Result."""
    (home / ".local/share/kwokfleet/results/lab/stress/20260303T080000Z-3").mkdir()
    done = run(home)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    assert "skipped" in done.stderr
    assert ok(home, "lab", "stress").startswith("lab/stress/2 ")


def test_an_invalid_result_file_is_an_error(home: Path) -> None:
    """A file of another kind, or none."""
    (home / "other.json").write_text('{"kind": "Pod"}')
    done = run(home, "./other.json")
    assert done.returncode == 2
    assert "is not a Result" in done.stderr


def test_the_exit_code_of_diff_shows_regressions(home: Path) -> None:
    """0 for none, 1 for a regression, 2 if not comparable; limits are options."""
    worse = run(home, "diff", "lab/stress/1", "lab/stress/2")
    assert worse.returncode == 1
    assert "podStartup p99" in worse.stdout
    assert "regressions above 10 % and 50 ms" in worse.stderr
    assert run(home, "diff", "lab/stress/1", folder(home, 1)).returncode == 0
    lenient = run(home, "diff", "lab/stress/1", "lab/stress", "--max-regression", "100%", "-o", "json")
    assert json.loads(lenient.stdout)["after"] == "lab/stress/2"
    regressions = [delta for delta in json.loads(lenient.stdout)["deltas"] if delta["verdict"] == "worse"]
    assert not any(delta["name"] == "podStartup" for delta in regressions)
    for wrong in (
        ("lab/stress/1", "lab/stress/9"),
        ("lab", "lab/stress"),
        ("lab/stress", "lab/stress", "--min-delta", "1"),
    ):
        assert run(home, "diff", *wrong).returncode == 2, wrong


def test_diff_prints_html_and_markdown(home: Path) -> None:
    """Markdown is for pull requests."""
    markdown = run(home, "diff", "lab/stress/1", "lab/stress/2", "-o", "markdown").stdout
    assert markdown.startswith("**kwokfleet:** ")
    page = html_page.HtmlPage(run(home, "diff", "lab/stress/1", "lab/pods/1", "-o", "html").stdout)
    assert "article" not in page.tags


def test_a_fleet_can_be_named_diff(home: Path) -> None:
    """With a slash it is not the subcommand."""
    sample = sample_results.sample_run(5)
    results = home / ".local/share/kwokfleet/results"
    sample_results.SampleRun(sample.result.model_copy(update={"fleet": "diff"}), sample.pods, ()).store(results)
    assert ok(home, "diff/").splitlines()[1].startswith("diff ")
    assert ok(home, "diff/stress").startswith("diff/stress/1 ")


def test_sparklines_are_ascii_without_unicode(home: Path) -> None:
    """And without a terminal no colours are printed."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kwokfleet", "report", "lab", "stress"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.isascii()
    assert "running" in done.stdout
    assert "\x1b" not in done.stdout
    assert not ok(home, "lab", "stress").isascii()
