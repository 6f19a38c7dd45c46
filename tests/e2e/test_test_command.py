"""`kwokfleet test` as a pipeline meets it: exit codes, what it says, and what it leaves behind."""

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
    """Return a wave of five jobs that take a second each."""
    job = JOB % (f", resources: {{requests: {resources}}}" if resources else "")
    return f"    - name: {name}\n      count: 5\n      lifecycle: quick\n{more}      template:{job}"


def expect(text: str) -> str:
    """Return the gates of a wave."""
    return f"      expect: {text}\n"


def saved(folder: Path, *waves: str) -> str:
    """Write a fleet file, and return its path."""
    file = folder / "lab.yaml"
    file.write_text(HEAD + "".join(waves))
    return str(file)


# before anything is started


def refused(folder: Path, *arguments: str) -> str:
    """Run a test that must not begin; return what it says."""
    return rejected_commands.run_rejected(folder, "test", *arguments)


def test_a_broken_file_costs_no_cluster(tmp_path: Path) -> None:
    """It is told with its line, and nothing was started."""
    said = refused(tmp_path, saved(tmp_path, wave("jobs").replace("count: 5", "count: many")))
    assert "lab.yaml:10:14: spec.waves[0].count" in said
    assert "the test was not started" in said


def test_a_file_without_a_wave_is_refused(tmp_path: Path) -> None:
    """There is nothing to test."""
    (tmp_path / "lab.yaml").write_text(HEAD.replace("  waves:\n", ""))
    assert "no wave of lab.yaml would run: the files have none" in refused(tmp_path, "lab.yaml")


def test_a_file_whose_waves_are_suspended_is_refused(tmp_path: Path) -> None:
    """They are named: somebody may have forgotten it."""
    assert "suspended: lab/jobs" in refused(tmp_path, saved(tmp_path, wave("jobs", "      suspend: true\n")))


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("{after: 2h}", "first due after --timeout"),
        ('{at: "2020-01-01T00:00:00Z"}', "the start time of lab/jobs is in the past"),
    ],
)
def test_a_wave_that_would_not_be_played_is_refused(tmp_path: Path, start: str, said: str) -> None:
    """Half an hour later would be too late to say so."""
    assert said in refused(tmp_path, saved(tmp_path, wave("jobs", f"      start: {start}\n")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--until", "soon"], "--until soon"),
        (["--timeout", "5"], "--timeout 5"),
        (["--until", "1h", "--timeout", "10m"], "must be shorter than --timeout"),
        (["--kubeconfig", "nowhere", "--kube-scheduler-config", "s.yaml"], "--kube-scheduler-config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_cannot_be_used_are_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    """Before anything is started, by their own names."""
    assert said in refused(tmp_path, saved(tmp_path, wave("jobs")), *arguments)


def test_a_duration_in_which_nothing_is_due_is_refused(tmp_path: Path) -> None:
    """It would play nothing, and pass."""
    file = saved(tmp_path, wave("jobs", "      start: {after: 2h}\n"))
    assert "none is due in that time" in refused(tmp_path, file, "--until", "5m")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """It was mistyped."""
    assert "flets: no such file or directory" in refused(tmp_path, "flets")


# with a cluster of its own


def left_behind(kwokfleet: Cli) -> list[str]:
    """Return the clusters there are."""
    return list(state.cluster_names(kwokfleet.data_dir))


def test_the_gates_decide(kwokfleet: Cli, tmp_path: Path) -> None:
    """One wave holds what it expects and one does not: 1, a row for each, the gate told; reports, and no cluster."""
    good = wave("good", expect("{deadline: 5m, failures: 0}"))
    bad = wave("bad", expect("{completion: {p50: 1ms}}"))
    folder = tmp_path / "reports"
    done = kwokfleet.run("test", saved(tmp_path, good, bad), "--report-dir", str(folder))
    assert done.returncode == 1, done.stderr
    rows = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    assert rows == {"WAVE": "RESULT", "lab/good": "passed", "lab/bad": "failed"}
    assert "lab/bad: completion.p50: wanted" in done.stderr
    assert "lab/good: completion" not in done.stderr
    assert (folder / "junit.xml").exists()
    assert left_behind(kwokfleet) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "terminated"]
)
def test_a_signal_in_the_middle_leaves_nothing(kwokfleet: Cli, tmp_path: Path, number: int, code: int) -> None:
    """Neither a cluster nor a process, and the exit code says why it ended."""
    slow = wave("slow", "      arrivals: {rate: 2/m}\n")
    with kwokfleet.start("test", saved(tmp_path, slow)) as process:
        said = Said(process)
        waiting.until(lambda: process.poll() is not None or said.has("lab/slow: "), deadline_s=END_S)
        assert len(left_behind(kwokfleet)) == 1
        process.send_signal(number)
        assert process.wait(END_S) == code, said.lines
    assert left_behind(kwokfleet) == []


class Said:
    """What a process says, as it says it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._stream: Any = process.stderr
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._stream:
            self.lines.append(line)

    def has(self, text: str) -> bool:
        """Return whether it has said something."""
        return any(text in line for line in list(self.lines))


def test_a_wave_that_never_ends_is_a_deadline_and_the_cluster_can_be_kept(kwokfleet: Cli, tmp_path: Path) -> None:
    """Pods that fit nowhere: 7, what is missing, and how to go on with the cluster that was kept."""
    stuck = wave("stuck", resources="{cpu: 1000}")
    done = kwokfleet.run("test", saved(tmp_path, stuck), "--timeout", "20s", "--keep")
    assert done.returncode == 7, done.stderr
    assert "lab/stuck is not finished" in done.stderr
    assert "the test cannot fail" in done.stderr
    (name,) = left_behind(kwokfleet)
    assert f"cluster down --name {name}" in done.stderr
    found = kwokfleet.ok("cluster", "kubectl", "--name", name, "get", "jobs", "--output", "name")
    assert len(found.splitlines()) == 5


def test_a_duration_ends_it_whatever_goes_on(kwokfleet: Cli, tmp_path: Path) -> None:
    """What is over is judged; what is not is shown, and makes nothing fail."""
    quick = wave("quick", expect("{failures: 0}"))
    slow = wave("slow", "      arrivals: {rate: 2/m}\n" + expect("{failures: 0}"))
    done = kwokfleet.run("test", saved(tmp_path, quick, slow), "--until", "20s")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: " ".join(line.split()[-2:]) for line in done.stdout.splitlines()}
    assert rows["lab/quick"].endswith(" passed")
    assert rows["lab/slow"].endswith(" unfinished")
