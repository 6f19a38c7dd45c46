"""Display of a test: redrawn on a terminal, lines otherwise; and the table of results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kwokfleet.experiment.progress import RunProgress, RunStep
from kwokfleet.experiment.runner import ExperimentSnapshot, Phase
from kwokfleet.measure.result import Clock, Result
from kwokfleet.waves.ledger import RunRecord

PLAIN_EVERY_S = 10.0
"""Interval of progress lines, where there is no terminal. The end of a step is printed at once."""
_PER_SECOND = 8
_ORDER = (Phase.SYNC, Phase.READY, Phase.WAVES)
Show = Callable[[ExperimentSnapshot], None]


@contextmanager
def display(console: Console, cluster: str) -> Iterator[Show]:
    """Yield a function that shows the state of a test, until the block ends."""
    if not console.is_terminal:
        console.print(f"cluster: {cluster}", soft_wrap=True)
        yield _PlainLines(console).show
        return
    live_display = _LiveDisplay(cluster)
    with Live(get_renderable=live_display.render, console=console, refresh_per_second=_PER_SECOND):
        yield live_display.show


class _PlainLines:
    """Prints a line for each change."""

    def __init__(self, console: Console) -> None:
        self._console, self._start = console, time.monotonic()
        self._printed: dict[str, tuple[object, str]] = {}
        self._last_line_at = -PLAIN_EVERY_S

    def show(self, state: ExperimentSnapshot) -> None:
        now, due = time.monotonic(), time.monotonic() - self._last_line_at >= PLAIN_EVERY_S
        for subject, step, text in _progress_lines(state):
            previous = self._printed.get(subject)
            is_new_step = previous is None or previous[0] != step
            if is_new_step or (due and previous is not None and previous[1] != text):
                self._printed[subject] = (step, text)
                self._last_line_at = now
                self._console.print(f"{now - self._start:6.1f} s  {subject}: {text}", soft_wrap=True)


def _progress_lines(state: ExperimentSnapshot) -> Iterator[tuple[str, object, str]]:
    """Yield subject, step and text of each line."""
    nodes = state.nodes
    if state.phase is Phase.SYNC:
        yield "sync", 0, f"{state.changes_left:,} changes left" if state.changes_left else "starting"
    else:
        yield "sync", 1, "done"
        if state.phase is Phase.WAVES or nodes.ready < nodes.desired:
            yield "ready", state.phase, f"{nodes.ready:,} of {nodes.desired:,} nodes"
    if state.obstacle:
        yield "waiting", state.obstacle, state.obstacle
    for run in state.runs if state.phase is Phase.WAVES else ():
        if run.step is not RunStep.WAITING:
            yield run.name, run.step, ", ".join(_run_details(run))


def _run_details(run: RunProgress) -> Iterator[str]:
    record, result = run.record, run.result
    if record is None:
        return
    yield f"{record.submitted:,} of {record.total:,} submitted" if record.total else "starting"
    if result is not None:
        yield f"{_running(result):,} pods running"
        yield f"{result.objects.completed:,} complete"
    if run.step is RunStep.FINISHED:
        yield f"{record.verdict.lower()}{f' in {duration_text(run)}' if run.duration else ''}"


class _LiveDisplay:
    """Draws the last state."""

    def __init__(self, cluster: str) -> None:
        self._cluster, self._spinner = cluster, Spinner("dots")
        self._state = ExperimentSnapshot()
        self._reached = {Phase.SYNC: time.monotonic()}

    def show(self, state: ExperimentSnapshot) -> None:
        for phase in _ORDER[: _ORDER.index(state.phase) + 1]:
            self._reached.setdefault(phase, time.monotonic())
        self._state = state

    def render(self) -> RenderableType:
        state, phases = self._state, Table.grid(padding=(0, 1))
        phases.add_row(Text("✓", "green"), "cluster", Text(self._cluster, "dim"), "")
        left = f"{state.changes_left:,} changes left" if state.changes_left else ""
        phases.add_row(*self._phase(Phase.SYNC, Phase.READY, left))
        phases.add_row(
            *self._phase(Phase.READY, Phase.WAVES, f"{state.nodes.ready:,} of {state.nodes.desired:,} nodes")
        )
        obstacle = [Text(f"  {state.obstacle}", "yellow")] if state.obstacle else []
        return Group(phases, *obstacle, *([self._waves()] if state.phase is Phase.WAVES else []))

    def _phase(self, phase: Phase, following: Phase, detail: str) -> tuple[RenderableType, ...]:
        began, ended = self._reached.get(phase), self._reached.get(following)
        if began is None:
            return Text("·", "dim"), Text(phase.value, "dim"), "", ""
        mark = Text("✓", "green") if ended else self._spinner.render(time.monotonic())
        spent = f"{(ended or time.monotonic()) - began:.1f} s"
        return mark, phase.value, Text("" if ended and phase is Phase.SYNC else detail, "dim"), Text(spent, "dim")

    def _waves(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
        for title in ("", "WAVE", "SUBMITTED", "RUNNING", "COMPLETE", "ELAPSED", ""):
            table.add_column(title, justify="left" if title in ("", "WAVE") else "right", no_wrap=True)
        for run in self._state.runs:
            table.add_row(*self._cells(run))
        return table

    def _cells(self, run: RunProgress) -> tuple[RenderableType, ...]:
        record, result = run.record, run.result
        if record is None:
            return Text("·", "dim"), Text(run.name, "dim"), "", "", "", "", ""
        over = run.step is RunStep.FINISHED
        passed = over and not run.failures
        mark, color = ("✓", "green") if passed else ("✗", "red")
        spent = duration_text(run) or f"{max(0.0, (datetime.now(UTC) - record.start).total_seconds()):.1f} s"
        return (
            Text(mark, color) if over else self._spinner.render(time.monotonic()),
            run.name,
            f"{record.submitted:,} of {record.total:,}" if record.total else "",
            f"{_running(result):,}" if result else "",
            f"{result.objects.completed:,} of {record.total:,}" if result else "",
            spent,
            Text(record.verdict.lower(), color) if over else Text(run.step.value, "dim"),
        )


def _running(result: Result) -> int:
    """Return the number of pods that run now: started pods minus finished pods."""
    pods = result.pods
    return max(0, pods.running - pods.completed - pods.failed)


def duration_text(run: RunProgress) -> str:
    """Return the duration of a Run, from its start time to the completion of all objects."""
    return f"{run.duration.total_seconds():.1f} s" if run.duration is not None else ""


def rows(runs: Sequence[RunProgress]) -> list[dict[str, object]]:
    """Return the result of each Run, as rows of a table."""
    return [_row(run, run.record) for run in runs if run.record is not None]


def _row(run: RunProgress, record: RunRecord) -> dict[str, object]:
    result = run.result
    gates = result.gates if result else ()
    verdict = "failed" if run.failures else "passed" if gates else "measured"
    startup = result.latency("podStartup", "pods", Clock.WATCH) if result else None
    return {
        "wave": run.name,
        "objects": record.total,
        "complete": result.objects.completed if result else "-",
        "failed": result.objects.failed if result else "-",
        "total": duration_text(run) or "-",
        "startup p50": _seconds(startup.p50 if startup else None),
        "startup p99": _seconds(startup.p99 if startup else None),
        "gates": f"{sum(gate.passed for gate in gates)} of {len(gates)}" if gates else "none",
        "result": verdict if run.step is RunStep.FINISHED else "unfinished",
    }


def _seconds(value: float | None) -> str:
    return "no data" if value is None else f"{value:.2f} s"
