"""What people see of a test: redrawn on a terminal, a line now and then anywhere else; and a table in the end."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kwokfleet.experiment.progress import Part, Step
from kwokfleet.experiment.runner import Phase, Scene
from kwokfleet.measure.result import Clock, Result

PLAIN_EVERY_S = 10.0
"""In a log, what has changed is told this often; that something is over, at once."""
_PER_SECOND = 8
_ORDER = (Phase.SYNC, Phase.READY, Phase.WAVES)
Show = Callable[[Scene], None]


@contextmanager
def display(console: Console, cluster: str) -> Iterator[Show]:
    """Show the scenes that the function this yields is told, until the block ends."""
    if not console.is_terminal:
        console.print(f"cluster: {cluster}", soft_wrap=True)
        yield _Lines(console).show
        return
    drawn = _Drawn(cluster)
    with Live(get_renderable=drawn.render, console=console, refresh_per_second=_PER_SECOND):
        yield drawn.show


class _Lines:
    """Writes a line for what has changed."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.monotonic()
        self._told: dict[str, tuple[object, str]] = {}
        self._said = -PLAIN_EVERY_S

    def show(self, scene: Scene) -> None:
        now, due = time.monotonic(), time.monotonic() - self._said >= PLAIN_EVERY_S
        for subject, step, text in _sentences(scene):
            before = self._told.get(subject)
            moved = before is None or before[0] != step
            if moved or (due and before is not None and before[1] != text):
                self._told[subject] = (step, text)
                self._said = now
                self._console.print(f"{now - self._began:6.1f} s  {subject}: {text}", soft_wrap=True)


def _sentences(scene: Scene) -> Iterator[tuple[str, object, str]]:
    """Yield a subject, how far it is, and what is to be said of it."""
    nodes = scene.nodes
    if scene.phase is Phase.SYNC:
        yield "sync", 0, f"{scene.changes:,} changes are left" if scene.changes else "begins"
    else:
        yield "sync", 1, "done"
        if scene.phase is Phase.WAVES or nodes.ready < nodes.desired:
            yield "ready", scene.phase, f"{nodes.ready:,} of {nodes.desired:,} nodes"
    if scene.lacking:
        yield "waiting", scene.lacking, scene.lacking
    for part in scene.parts if scene.phase is Phase.WAVES else ():
        if part.step is not Step.WAITING:
            yield part.name, part.step, ", ".join(_words(part))


def _words(part: Part) -> Iterator[str]:
    entry, result = part.entry, part.result
    if entry is None:
        return
    yield f"{entry.submitted:,} of {entry.total:,} submitted" if entry.total else "begins"
    if result is not None:
        yield f"{_running(result):,} pods running"
        yield f"{result.objects.completed:,} complete"
    if part.step is Step.OVER:
        yield f"{entry.verdict.lower()}{f' in {duration_text(part)}' if part.took else ''}"


class _Drawn:
    """Draws the last scene."""

    def __init__(self, cluster: str) -> None:
        self._cluster, self._spinner = cluster, Spinner("dots")
        self._scene = Scene()
        self._reached = {Phase.SYNC: time.monotonic()}

    def show(self, scene: Scene) -> None:
        for phase in _ORDER[: _ORDER.index(scene.phase) + 1]:
            self._reached.setdefault(phase, time.monotonic())
        self._scene = scene

    def render(self) -> RenderableType:
        scene, phases = self._scene, Table.grid(padding=(0, 1))
        phases.add_row(Text("✓", "green"), "cluster", Text(self._cluster, "dim"), "")
        left = f"{scene.changes:,} changes left" if scene.changes else ""
        phases.add_row(*self._phase(Phase.SYNC, Phase.READY, left))
        phases.add_row(
            *self._phase(Phase.READY, Phase.WAVES, f"{scene.nodes.ready:,} of {scene.nodes.desired:,} nodes")
        )
        lacking = [Text(f"  {scene.lacking}", "yellow")] if scene.lacking else []
        return Group(phases, *lacking, *([self._waves()] if scene.phase is Phase.WAVES else []))

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
        for part in self._scene.parts:
            table.add_row(*self._cells(part))
        return table

    def _cells(self, part: Part) -> tuple[RenderableType, ...]:
        entry, result = part.entry, part.result
        if entry is None:
            return Text("·", "dim"), Text(part.name, "dim"), "", "", "", "", ""
        over = part.step is Step.OVER
        good = over and not part.complaints
        mark = (
            Text("✓" if good else "✗", "green" if good else "red") if over else self._spinner.render(time.monotonic())
        )
        spent = duration_text(part) or f"{max(0.0, (datetime.now(UTC) - entry.start).total_seconds()):.1f} s"
        return (
            mark,
            part.name,
            f"{entry.submitted:,} of {entry.total:,}" if entry.total else "",
            f"{_running(result):,}" if result else "",
            f"{result.objects.completed:,} of {entry.total:,}" if result else "",
            spent,
            Text(entry.verdict.lower(), "green" if good else "red") if over else Text(part.step.value, "dim"),
        )


def _running(result: Result) -> int:
    """Return how many pods run now: those that have run, less those that are over."""
    pods = result.pods
    return max(0, pods.running - pods.completed - pods.failed)


def duration_text(part: Part) -> str:
    """Return how long a Run took, from when it was due to when all was complete."""
    return f"{part.took.total_seconds():.1f} s" if part.took is not None else ""


def rows(parts: Sequence[Part]) -> list[dict[str, object]]:
    """Return what came of each Run, as rows of a table."""
    return [_row(part) for part in parts if part.entry is not None]


def _row(part: Part) -> dict[str, object]:
    entry, result = part.entry, part.result
    gates = result.gates if result else ()
    startup = result.latency("podStartup", "pods", Clock.WATCH) if result else None
    return {
        "wave": part.name,
        "objects": entry.total if entry else 0,
        "complete": result.objects.completed if result else "-",
        "failed": result.objects.failed if result else "-",
        "total": duration_text(part) or "-",
        "startup p50": _seconds(startup.p50 if startup else None),
        "startup p99": _seconds(startup.p99 if startup else None),
        "gates": f"{sum(each.passed for each in gates)} of {len(gates)}" if gates else "none",
        "result": _verdict(part),
    }


def _verdict(part: Part) -> str:
    if part.step is not Step.OVER:
        return "not over"
    return "failed" if part.complaints else "passed" if part.result and part.result.gates else "measured"


def _seconds(value: float | None) -> str:
    return "no data" if value is None else f"{value:.2f} s"
