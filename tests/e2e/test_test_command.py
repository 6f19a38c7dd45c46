"""`kwokfleet test`: exit codes, output and clean-up."""

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kwokfleet.embedded import state
from tests.harness import rejected_commands, waiting
from tests.harness.cli import Cli

if TYPE_CHECKING:
    import subprocess

END_S = 120

JOB = """
        apiVersion: batch/v1
        kind: Job
        spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox%s}]}}}
"""
HEAD = """
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet
metadata: {name: lab}
spec:
  nodePools: [{name: pool, replicas: 3}]
  lifecycles: [{name: quick, pod: {complete: 1s}}]
  waves:
"""


def wave(name: str, more: str = "", resources: str = "") -> str:
    """Return a wave of five Jobs of one second."""
    job = JOB % (f", resources: {{requests: {resources}}}" if resources else "")
    return f"    - name: {name}\n      count: 5\n      lifecycle: quick\n{more}      template:{job}"


def expect(text: str) -> str:
    """Return the gates of a wave."""
    return f"      expect: {text}\n"


def write_fleet(folder: Path, *waves: str) -> str:
    """Write a fleet file; return its path."""
    file = folder / "lab.yaml"
    file.write_text(HEAD + "".join(waves))
    return str(file)


# errors before the start


def run_rejected(folder: Path, *arguments: str) -> str:
    """Run a test that is rejected before its start; return its standard error."""
    return rejected_commands.run_rejected(folder, "test", *arguments)


def test_an_invalid_file_starts_no_cluster(tmp_path: Path) -> None:
    """The error has its line."""
    stderr = run_rejected(tmp_path, write_fleet(tmp_path, wave("jobs").replace("count: 5", "count: many")))
    assert "lab.yaml:10:14: spec.waves[0].count" in stderr
    assert "the test was not started" in stderr


def test_a_file_without_waves_is_an_error(tmp_path: Path) -> None:
    """There is nothing to test."""
    (tmp_path / "lab.yaml").write_text(HEAD.replace("  waves:\n", ""))
    assert "no wave of lab.yaml would run: the files have none" in run_rejected(tmp_path, "lab.yaml")


def test_suspended_waves_are_an_error(tmp_path: Path) -> None:
    """The error names them."""
    assert "suspended: lab/jobs" in run_rejected(tmp_path, write_fleet(tmp_path, wave("jobs", "      suspend: true\n")))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("{after: 2h}", "first due after --timeout"),
        ('{at: "2020-01-01T00:00:00Z"}', "the start time of lab/jobs is in the past"),
    ],
)
def test_a_wave_that_would_not_run_is_an_error(tmp_path: Path, start: str, message: str) -> None:
    """It is reported before the start, not after a long run."""
    assert message in run_rejected(tmp_path, write_fleet(tmp_path, wave("jobs", f"      start: {start}\n")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--until", "soon"], "--until soon"),
        (["--timeout", "5"], "--timeout 5"),
        (["--until", "1h", "--timeout", "10m"], "must be shorter than --timeout"),
        (["--kubeconfig", "nowhere", "--kube-scheduler-config", "s.yaml"], "--kube-scheduler-config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_flags_are_an_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    """The error names the flag."""
    assert message in run_rejected(tmp_path, write_fleet(tmp_path, wave("jobs")), *arguments)


def test_a_duration_without_a_due_run_is_an_error(tmp_path: Path) -> None:
    """The test would pass without a Run."""
    file = write_fleet(tmp_path, wave("jobs", "      start: {after: 2h}\n"))
    assert "none is due in that time" in run_rejected(tmp_path, file, "--until", "5m")


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """Probably a typing error."""
    assert "flets: no such file or directory" in run_rejected(tmp_path, "flets")


# with an embedded cluster


def cluster_names(kwokfleet: Cli) -> list[str]:
    """Return the existing clusters."""
    return list(state.cluster_names(kwokfleet.data_dir))


def test_gates_set_the_exit_code(kwokfleet: Cli, tmp_path: Path) -> None:
    """One wave passes and one fails: exit code 1, a row for each, reports, and no cluster is left."""
    good = wave("good", expect("{deadline: 5m, failures: 0}"))
    bad = wave("bad", expect("{completion: {p50: 1ms}}"))
    folder = tmp_path / "reports"
    done = kwokfleet.run("test", write_fleet(tmp_path, good, bad), "--report-dir", str(folder))
    assert done.returncode == 1, done.stderr
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert rows == {"WAVE": "RESULT", "lab/good": "passed", "lab/bad": "failed"}
    assert "lab/bad: completion.p50: wanted" in done.stderr
    assert "lab/good: completion" not in done.stderr
    assert (folder / "junit.xml").exists()
    assert cluster_names(kwokfleet) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "terminated"]
)
def test_a_signal_leaves_no_cluster(kwokfleet: Cli, tmp_path: Path, number: int, code: int) -> None:
    """And no process; the exit code shows the signal."""
    slow = wave("slow", "      arrivals: {rate: 2/m}\n")
    with kwokfleet.start("test", write_fleet(tmp_path, slow)) as process:
        stderr = StderrReader(process)
        waiting.until(lambda: process.poll() is not None or stderr.has("lab/slow: "), deadline_s=END_S)
        assert len(cluster_names(kwokfleet)) == 1
        process.send_signal(number)
        assert process.wait(END_S) == code, stderr.lines
    assert cluster_names(kwokfleet) == []


class StderrReader:
    """Reads the standard error of a running process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._stream: Any = process.stderr
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            self.lines.append(line)

    def has(self, text: str) -> bool:
        """Return whether a line contains a text."""
        return any(text in line for line in list(self.lines))


def test_an_unfinished_wave_is_a_timeout_and_keep_keeps_the_cluster(kwokfleet: Cli, tmp_path: Path) -> None:
    """Unschedulable pods: exit code 7, the unfinished wave, and hints for the kept cluster."""
    stuck = wave("stuck", resources="{cpu: 1000}")
    done = kwokfleet.run("test", write_fleet(tmp_path, stuck), "--timeout", "20s", "--keep")
    assert done.returncode == 7, done.stderr
    assert "lab/stuck is not finished" in done.stderr
    assert "the test cannot fail" in done.stderr
    (name,) = cluster_names(kwokfleet)
    assert f"cluster down --name {name}" in done.stderr
    jobs = kwokfleet.ok("cluster", "kubectl", "--name", name, "get", "jobs", "--output", "name")
    assert len(jobs.splitlines()) == 5


def test_until_ends_the_test(kwokfleet: Cli, tmp_path: Path) -> None:
    """Finished waves are judged; unfinished ones are listed and do not fail the test."""
    quick = wave("quick", expect("{failures: 0}"))
    slow = wave("slow", "      arrivals: {rate: 2/m}\n" + expect("{failures: 0}"))
    done = kwokfleet.run("test", write_fleet(tmp_path, quick, slow), "--until", "20s")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: " ".join(line.split()[-2:]) for line in done.stdout.splitlines()}
    assert rows["lab/quick"].endswith(" passed")
    assert rows["lab/slow"].endswith(" unfinished")
