"""What the page says of Results in numbers: cards, gates, latencies, comparison, troubles."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape

from kwokfleet.measure import compare
from kwokfleet.measure.compare import Comparison, Delta, DeltaVerdict, Unit
from kwokfleet.measure.result import Clock, Counts, GateResult, Latency, Result
from kwokfleet.report import numbers as figures
from kwokfleet.report.html import markup, svg_plot
from kwokfleet.report.html.markup import Cell, Row

CLUSTERLOADER2 = (Clock.CL2_2024, Clock.CL2_2026)
STEPS = {
    "scheduling": "created to scheduled",
    "podStartup": "created to running",
    "ready": "created to ready",
    "completion": "created to complete",
    "dispatch": "created to first pod",
    "start": "created to started",
}
_COMPARED = (
    ("podStartup", ("p50", "p90", "p99")),
    ("scheduling", ("p50", "p99")),
    ("ready", ("p99",)),
    ("completion", ("p50", "p99")),
)
_FEW = 3
"""Runs beside which there is room for words."""


def tag(place: int, title: str) -> Cell:
    """Return the name of one of several Runs, with its colour."""
    return Cell(title, f"text tagged c{place % 8 + 1}")


# ----------------------------------------------------------------------------------------
# one Run


def cards(made: Result) -> str:
    """Return what one wants to know first."""
    return f'<dl class="cards">{"".join(_card(*each) for each in _cards(made))}</dl>\n'


def _card(title: str, value: str, below: str) -> str:
    return f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd><p>{escape(below)}</p></div>"


def _cards(made: Result) -> Iterator[tuple[str, str, str]]:
    counts, kind = made.objects, made.template_kind or "object"
    done, word = (counts.completed, "completed") if counts.completed or counts.failed else (counts.created, "created")
    yield f"{kind}s {word}", f"{done:,}", f"of {counts.total:,}; {counts.failed:,} failed"
    yield "Time", figures.duration(figures.length(made)), "until all was over" if made.end else "it is not over"
    for name, title in (("podStartup", "Pod startup, p99"), ("scheduling", "Scheduling, p99")):
        found = figures.main_latency(made, name)
        below = f"p50 {figures.duration(found.p50)}, clock: {found.clock}" if found else "nothing was measured"
        yield title, figures.duration(found.p99 if found else None), below
    best = next((each for each in made.throughput if not each.scheduler and each.windows), None)
    window = f"mean {figures.rate(best.mean)}, windows of {best.window_s:g} s" if best else "nothing was measured"
    yield "Scheduled, peak", figures.rate(best.max if best else None), window
    pacing = made.pacing
    sent = f"{figures.rate(pacing.rate)} sent, {figures.rate(pacing.planned_rate)} planned"
    yield "Submitted late, p99", figures.duration(pacing.p99), sent if pacing.count else "nothing was measured"


def notes(made: Result) -> Iterator[str]:
    """Yield what one must know to trust the numbers."""
    if made.state == "Running":
        yield "The Run is not over: these are the numbers so far."
    if made.state == "Cancelled":
        yield "The Run was cancelled."
    for gap in made.gaps:
        seconds = (gap.end - gap.start).total_seconds()
        place = svg_plot.elapsed((gap.start - made.start).total_seconds())
        yield f"Nobody was watching for {figures.duration(seconds)}, from {place} on: {gap.why}."
    missing = max((each.missing for each in made.latencies if each.clock is Clock.WATCH), default=0)
    if missing:
        yield f"Up to {missing:,} objects are missing from latencies by the watch: something happened unseen."
    if made.pacing.refused:
        yield f"{made.pacing.refused:,} objects were refused for good."


def gates(results: Sequence[tuple[Cell | None, Result]]) -> str:
    """Return each gate of each Run."""
    several = len(results) > 1
    head = [*([Cell("run", "text")] if several else []), *(Cell(each, "text") for each in _GATE_HEAD)]
    rows = [
        [*([name] if several and name else []), *_gate(gate)]
        for name, made in results
        for gate in sorted(made.gates, key=lambda each: each.passed)
    ]
    return markup.table(head, rows) if rows else '<p class="soft">The wave has no gates: no <code>expect</code>.</p>'


_GATE_HEAD = ("gate", "verdict", "wanted", "got", "clock", "why")


def _gate(gate: GateResult) -> Iterator[Cell]:
    verdict = figures.NO_DATA if gate.no_data else "passed" if gate.passed else "failed"
    yield Cell(gate.name, "text")
    yield Cell({"passed": "✓ passed", "failed": "✕ failed"}.get(verdict, f"? {verdict}"), f"text {_style(verdict)}")
    yield from (Cell(each, "text") for each in (gate.want, gate.got, str(gate.clock or "")))
    yield Cell(gate.why, "text long")


def _style(verdict: str) -> str:
    return verdict.replace(" ", "")


def badge(made: Result) -> str:
    """Return whether the gates held, to be seen from afar."""
    verdict = figures.verdict(made)
    sign = {"passed": "✓ ", "failed": "✕ "}.get(verdict, "")
    return f'<span class="badge {_style(verdict)}">{sign}{escape(verdict)}</span>'


def latencies(made: Result) -> str:
    """Return every latency; those by ClusterLoader2's definitions apart."""
    own = [each for each in made.latencies if each.clock not in CLUSTERLOADER2]
    theirs = [each for each in made.latencies if each.clock in CLUSTERLOADER2]
    return _latency_table(own) + markup.details("By ClusterLoader2's definitions", _latency_table(theirs))


def _latency_table(found: Sequence[Latency]) -> str:
    head: Row = [Cell("latency", "text"), Cell("clock", "text"), "known", "missing", *figures.STATISTICS]
    rows: list[Row] = []
    last = None
    for each in sorted(found, key=lambda each: (each.of != "pods", each.of)):
        if each.of != last:
            rows.append([each.of])
        last = each.of
        numbers = (figures.duration(getattr(each, name)) for name in figures.STATISTICS)
        title = Cell(each.name, "text", STEPS.get(each.name, ""))
        rows.append([title, Cell(each.clock, "text"), f"{each.count:,}", f"{each.missing:,}", *numbers])
    return markup.table(head, rows) if rows else ""


def counts(made: Result) -> str:
    """Return how far objects and pods came."""
    names = list(Counts.model_fields)
    rows: list[Row] = [[f"{made.template_kind or 'object'}s", *(f"{getattr(made.objects, name):,}" for name in names)]]
    if made.template_kind != "Pod":
        rows.append(["Pods", *(f"{getattr(made.pods, name):,}" for name in names)])
    return markup.table(["", *("ran" if name == "running" else name for name in names)], rows)


def rates(made: Result) -> str:
    """Return how fast pods were scheduled, and how exactly objects were submitted."""
    throughput: list[Row] = [
        [each.scheduler or "all schedulers", f"{each.windows:,}"]
        + [figures.rate(getattr(each, name)) for name in ("mean", "p50", "p90", "p99", "max")]
        for each in made.throughput
    ]
    head: Row = [Cell("scheduled per second", "text"), "windows", "mean", "p50", "p90", "p99", "max"]
    return (markup.table(head, throughput) if throughput else "") + "<br>" + _pacing(made)


def _pacing(made: Result) -> str:
    pacing = made.pacing
    head: Row = [
        Cell("submitted", "text"),
        "planned rate",
        "rate",
        "late p50",
        "p90",
        "p99",
        "max",
        "retried",
        "refused",
    ]
    late = (figures.duration(getattr(pacing, name)) for name in ("p50", "p90", "p99", "max"))
    sent = (figures.rate(pacing.planned_rate), figures.rate(pacing.rate))
    return markup.table(head, [[f"{pacing.count:,}", *sent, *late, f"{pacing.retried:,}", f"{pacing.refused:,}"]])


def failures(made: Result) -> str:
    """Return what went wrong."""
    rows: list[Row] = [
        [Cell(each.what, "text long"), f"{each.count:,}", Cell(each.example, "text")] for each in made.troubles
    ]
    return markup.table([Cell("what", "text"), "times", Cell("first", "text")], rows) if rows else ""


def marks(made: Result) -> str:
    """Return the moments that the timeline numbers."""
    rows = (f"<li><b>{escape(each.what)}</b> {_since(made, each.at)}</li>" for each in made.marks)
    return f'<ol class="marks">{"".join(rows)}</ol>' if made.marks else ""


def _since(made: Result, when: datetime) -> str:
    return f"at {svg_plot.elapsed((when - made.start).total_seconds())}"


# ----------------------------------------------------------------------------------------
# several Runs


def comparison(names: Sequence[Cell], results: Sequence[Result]) -> str:
    """Return Runs beside each other; what differs is told against the first."""
    compared = [compare.compare(results[0], each) for each in results]
    head = [Cell("", "text"), *(Cell(each.text, each.style.replace("text ", "")) for each in names)]
    rows: list[Row] = [["time until all was over", *_lengths(results)]]
    for group, lines in _groups(results[0]):
        found = [(title, [_find(each, key) for each in compared]) for title, key in lines]
        known = [(title, deltas) for title, deltas in found if any(each and each.after is not None for each in deltas)]
        rows += [[group]] if known else []
        rows += [[title, *(_delta(each, first=not at) for at, each in enumerate(deltas))] for title, deltas in known]
    notes = {note for each in compared[1:] for note in each.notes}
    told = "".join(f"<li>{escape(note)}</li>" for note in sorted(notes))
    few = "few" if len(results) <= _FEW else ""
    return markup.table(head, rows, few) + (f'<ul class="note">{told}</ul>' if told else "")


def _lengths(results: Sequence[Result]) -> Iterator[Cell]:
    base = figures.length(results[0])
    for place, each in enumerate(results):
        took = figures.length(each)
        by = took - base if place and took is not None and base is not None else None
        ratio = by / base if by is not None and base else None
        below = figures.change(by, ratio, Unit.SECONDS) if by is not None else ""
        yield Cell(figures.duration(took), "", below)


_Key = tuple[str, str, str, Clock | None]


def _groups(base: Result) -> Iterator[tuple[str, Sequence[tuple[str, _Key]]]]:
    yield (
        f"{base.template_kind or 'object'}s",
        [(name, ("objects", "count", name, None)) for name in ("completed", "failed")],
    )
    for of in dict.fromkeys(("pods", base.template_kind)):
        for name, statistics in _COMPARED:
            if found := figures.main_latency(base, name, of):
                title = f"{of}: {STEPS[name]} ({name}, clock: {found.clock})"
                yield title, [(each, (of, name, each, found.clock)) for each in statistics]
    yield "scheduled per second", [(each, ("pods", "throughput", each, None)) for each in ("mean", "max")]
    yield "submitted late", [(each, ("objects", "lateness", each, None)) for each in ("p50", "p99")]


def _find(found: Comparison, key: _Key) -> Delta | None:
    return next((each for each in found.deltas if (each.of, each.name, each.statistic, each.clock) == key), None)


def _delta(each: Delta | None, *, first: bool) -> Cell:
    if each is None or each.after is None:
        return Cell(figures.NO_DATA)
    text = figures.amount(each.after, each.unit)
    if first or each.change is None:
        return Cell(text)
    style = each.verdict.value if each.verdict in (DeltaVerdict.BETTER, DeltaVerdict.WORSE) else ""
    word = f", {each.verdict}" if style else ""
    return Cell(text, style, figures.change(each.change, each.ratio, each.unit) + word)
