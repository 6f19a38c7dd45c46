"""`kwokfleet learn` with recordings: output and errors."""

import json
from pathlib import Path

import pytest

from kwokfleet.render.distributions import ExponentialDistribution
from kwokfleet.render.seeded_random import SeededRandom
from tests.harness import cli, pod_states

PODS = 40


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return a recording of pods of Jobs."""
    run = SeededRandom("run")
    states = [
        ("ADDED" if not number else "MODIFIED", state)
        for index in range(PODS)
        for number, state in enumerate(
            pod_states.job_pod_states(
                f"job-{index}", 10.3 * index, (2, 5, run.draw(index, ExponentialDistribution(60)))
            )
        )
    ]
    file = tmp_path / "pods.json"
    file.write_text(pod_states.kubectl_watch_output(states))
    return file


def test_a_recording_gives_a_lifecycle_and_its_fit(kwokfleet: cli.Cli, recording: Path) -> None:
    """The Lifecycle on standard output, the table with histograms on standard error."""
    done = kwokfleet.run("learn", str(recording))
    assert done.returncode == 0
    assert "  - name: pods\n" in done.stdout
    assert "after: {exponential: {mean: " in done.stdout
    assert f"{PODS} by API timestamps (1 s)" in done.stdout
    assert "whole seconds" in done.stderr
    assert "█" in done.stderr
    assert "complete" in done.stderr


def test_histograms_are_ascii_without_unicode(kwokfleet: cli.Cli, recording: Path) -> None:
    """No character that the terminal cannot show."""
    done = cli.Cli(kwokfleet.data_dir, kwokfleet.environment, fresh=True).run(
        "learn", str(recording), PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 0
    assert done.stderr.isascii()
    assert "@" in done.stderr


def test_a_written_fleet_is_valid(kwokfleet: cli.Cli, recording: Path, tmp_path: Path) -> None:
    """An existing file is not overwritten."""
    file = tmp_path / "fleets" / "batch.yaml"
    kwokfleet.ok("learn", str(recording), "--fleet", "batch", "--name", "steady", "--to", str(file))
    kwokfleet.ok("validate", "--strict", str(file))
    rendered = kwokfleet.ok("render", str(file), "--waves", "--kind", "Job", "--output", "name")
    assert len(rendered.splitlines()) == PODS
    again = kwokfleet.run("learn", str(recording), "--fleet", "batch", "--to", str(file))
    assert again.returncode == 5
    assert "already exists" in again.stderr


def test_json_has_the_whole_fit(kwokfleet: cli.Cli, recording: Path) -> None:
    """For programs."""
    model = json.loads(kwokfleet.ok("learn", str(recording), "-o", "json"))
    assert model["pods"] == PODS
    assert model["steps"]["complete"]["distribution"] == "exponential"
    assert model["steps"]["complete"]["seen"].keys() == model["steps"]["complete"]["fitted"].keys()
    assert model["lifecycle"]["pod"]["complete"] == {"after": model["steps"]["complete"]["delay"]}


def test_invalid_records_are_reported_with_their_line(kwokfleet: cli.Cli, recording: Path) -> None:
    """The other records are used; UTF-16 of PowerShell is accepted."""
    text = recording.read_text()
    recording.write_bytes(f'{text}{{\n  "type": "ADDED",\n{text}'.encode("utf-16"))
    done = kwokfleet.run("learn", str(recording))
    assert done.returncode == 0
    line = text.count("\n") + 1
    assert f"pods.json:{line + 2}:1: the record that starts in line {line} is truncated" in done.stderr
    assert "1 invalid record skipped" in done.stderr
    assert f"from {PODS} pods" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--selector or a recording is required"),
        (("FILE", "--selector", "app=web"), 2, "a recording and --selector exclude each other"),
        (("nowhere.json",), 2, "cannot read nowhere.json"),
        (("EMPTY",), 2, "no pods in"),
        (("PENDING",), 2, "cannot learn from 1 pod of"),
        (("FILE", "--name", "No Name"), 2, "for example no-name"),
        (("--selector", "app=web", "--for", "soon"), 2, "must be a duration"),
        (("--selector", "app=web", "--kubeconfig", "nowhere"), 4, "file not found"),
    ],
    ids=["nothing", "both", "no file", "empty", "pending", "name", "duration", "no cluster"],
)
def test_invalid_arguments_are_errors_with_a_hint(
    kwokfleet: cli.Cli, recording: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """With the exit code of their cause."""
    (recording.parent / "empty.json").touch()
    pending = pod_states.kubectl_watch_output([("ADDED", pod_states.PodState("pending").now)])
    (recording.parent / "pending.json").write_text(pending)
    files = {"FILE": recording, "EMPTY": recording.parent / "empty.json", "PENDING": recording.parent / "pending.json"}
    done = kwokfleet.run("learn", *(str(files.get(argument, argument)) for argument in arguments))
    assert done.returncode == code
    assert message in done.stderr
    assert not done.stdout
