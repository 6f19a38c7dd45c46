"""Display of a test, on a terminal and in a log."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from kwokfleet.cli import test_view
from kwokfleet.daemon.snapshot import Nodes
from kwokfleet.experiment import progress
from kwokfleet.experiment.progress import ExpectedWave, RunProgress
from kwokfleet.experiment.runner import ExperimentSnapshot, Phase
from kwokfleet.measure.result import Clock, Counts, GateResult, Latency, Result
from kwokfleet.waves.ledger import RunRecord, RunState, RunVerdict

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
EXPECTED = ExpectedWave("lab", "jobs", has_gates=True, allows_failures=False)
GATE = GateResult(name="failures", want="at most 0", got="0", passed=True)


def snapshot(phase: Phase, *runs: RunProgress, **fields: Any) -> ExperimentSnapshot:  # noqa: ANN401  # its fields
    """Return a snapshot of a test with four nodes."""
    return ExperimentSnapshot(**{"phase": phase, "nodes": Nodes(4, 4, 4, 4), "runs": runs, **fields})


def run(submitted: int, complete: int = 0, verdict: RunVerdict = RunVerdict.OPEN, *gates: GateResult) -> RunProgress:
    """Return the progress of a Run of ten jobs."""
    record = RunRecord("0", NOW, RunState.RUNNING if submitted < 10 else RunState.DONE, submitted, 10, verdict=verdict)
    result = Result(
        fleet="lab",
        wave="jobs",
        run="0",
        start=NOW,
        end=NOW + timedelta(seconds=12.3) if verdict else None,
        objects=Counts(total=10, created=submitted, completed=complete),
        pods=Counts(created=submitted, running=submitted, completed=complete),
        latencies=(Latency(name="podStartup", of="pods", clock=Clock.WATCH, count=10, p50=1.5, p99=2.25),),
        gates=gates,
    )
    return progress.run_progress([EXPECTED], {("lab", "jobs", "0"): record}, {("lab", "jobs", "0"): result})[0]


WAITING = progress.run_progress([EXPECTED], {}, {})[0]
PLAY = [
    snapshot(Phase.SYNC, WAITING, changes_left=7, nodes=Nodes(4, 0, 0, 0)),
    snapshot(Phase.READY, WAITING, nodes=Nodes(4, 4, 1, 1)),
    snapshot(Phase.WAVES, WAITING),
    snapshot(Phase.WAVES, run(3)),
    snapshot(Phase.WAVES, run(10)),
    snapshot(Phase.WAVES, run(10, 10, RunVerdict.PASSED, GATE)),
]


def logged(*snapshots: ExperimentSnapshot) -> list[str]:
    """Return the lines of a log."""
    out = io.StringIO()
    with test_view.display(Console(file=out, width=200), "test-1, Kubernetes v1") as show:
        for state in snapshots:
            show(state)
    return [line.partition(" s  ")[2] or line for line in out.getvalue().splitlines()]


def test_a_log_has_a_line_for_each_step() -> None:
    """No line is repeated."""
    repeated = [state for state in PLAY for _ in range(3)]
    assert logged(*repeated) == [
        "cluster: test-1, Kubernetes v1",
        "sync: 7 changes left",
        "sync: done",
        "ready: 1 of 4 nodes",
        "ready: 4 of 4 nodes",
        "lab/jobs: 3 of 10 submitted, 3 pods running, 0 complete",
        "lab/jobs: 10 of 10 submitted, 10 pods running, 0 complete",
        "lab/jobs: 10 of 10 submitted, 0 pods running, 10 complete, passed in 12.3 s",
    ]


def test_a_log_has_few_lines_about_growing_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a step, lines are printed at an interval."""
    growing = [snapshot(Phase.WAVES, run(number)) for number in range(1, 10)]
    assert sum("submitted" in line for line in logged(*growing)) == 1
    monkeypatch.setattr(test_view, "PLAIN_EVERY_S", 0.0)
    assert sum("submitted" in line for line in logged(*growing)) == 9


def test_an_obstacle_is_printed_once() -> None:
    """Its duration does not matter."""
    stuck = snapshot(Phase.SYNC, obstacle="kwok (shard 0) is starting")
    assert logged(stuck, stuck)[-1] == "waiting: kwok (shard 0) is starting"


def drawn(*snapshots: ExperimentSnapshot) -> str:
    """Return the output on a terminal."""
    out = io.StringIO()
    with test_view.display(Console(file=out, width=100, force_terminal=True, no_color=True), "test-1") as show:
        for state in snapshots:
            show(state)
    return out.getvalue()


def test_a_terminal_shows_phases_and_waves() -> None:
    """Finished, current and later phases."""
    text = drawn(*PLAY)
    for expected in ("✓ cluster", "✓ sync", "✓ ready", "lab/jobs", "10 of 10", "12.3 s", "passed"):
        assert expected in text
    assert "lab/jobs" not in drawn(*PLAY[:2])
    assert "1 of 4 nodes" in drawn(*PLAY[:2])


def test_the_table_has_a_row_for_each_run() -> None:
    """Duration, startup latencies, and the number of passed gates."""
    bad = GateResult(name="deadline", want="10s", got="12.3s", passed=False)
    (row,) = test_view.rows([run(10, 10, RunVerdict.FAILED, GATE, bad)])
    assert row == {
        "wave": "lab/jobs",
        "objects": 10,
        "complete": 10,
        "failed": 0,
        "total": "12.3 s",
        "startup p50": "1.50 s",
        "startup p99": "2.25 s",
        "gates": "1 of 2",
        "result": "failed",
    }


def test_a_wave_without_a_run_has_no_row_and_an_unfinished_run_no_verdict() -> None:
    """Missing data is not invented."""
    assert test_view.rows([WAITING]) == []
    assert test_view.rows([run(3)])[0]["result"] == "unfinished"
    assert test_view.rows([run(10, 10, RunVerdict.MEASURED)])[0]["result"] == "measured"
