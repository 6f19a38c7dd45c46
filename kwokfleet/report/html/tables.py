"""Tables of the HTML report: cards, gates, latencies, comparison, failures."""

from collections.abc import Iterator, Sequence
from html import escape

from kwokfleet.measure import compare
from kwokfleet.measure.compare import Comparison, Delta, DeltaVerdict, Unit
from kwokfleet.measure.result import CLUSTERLOADER2, Clock, Counts, GateResult, Latency, Result
from kwokfleet.report import numbers
from kwokfleet.report.html import markup, svg_plot
from kwokfleet.report.html.markup import Cell, Row

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
"""Up to this number of Runs, cells have room for words."""


def tag(place: int, title: str) -> Cell:
    """Return the name of one of several Runs, with its colour."""
    return Cell(title, f"text tagged c{place % 8 + 1}")


# ----------------------------------------------------------------------------------------
# one Run


def cards(result: Result) -> str:
    """Return the key figures."""
    cards = (tuple(map(escape, card)) for card in _cards(result))
    items = (f"<div><dt>{title}</dt><dd>{value}</dd><p>{below}</p></div>" for title, value, below in cards)
    return f'<dl class="cards">{"".join(items)}</dl>\n'


def _cards(result: Result) -> Iterator[tuple[str, str, str]]:
    counts, kind = result.objects, result.template_kind or "object"
    done, word = (counts.completed, "completed") if counts.completed or counts.failed else (counts.created, "created")
    yield f"{kind}s {word}", f"{done:,}", f"of {counts.total:,}; {counts.failed:,} failed"
    ended = "until the last object ended" if result.end else "not over yet"
    yield "Time", numbers.duration(numbers.length(result)), ended
    for name, title in (("podStartup", "Pod startup, p99"), ("scheduling", "Scheduling, p99")):
        latency = numbers.main_latency(result, name)
        below = f"p50 {numbers.duration(latency.p50)}, clock: {latency.clock}" if latency else "no data"
        yield title, numbers.duration(latency.p99 if latency else None), below
    best = next((item for item in result.throughput if not item.scheduler and item.windows), None)
    window = f"mean {numbers.rate(best.mean)}, windows of {best.window_s:g} s" if best else "no data"
    yield "Scheduled, peak", numbers.rate(best.max if best else None), window
    pacing = result.pacing
    sent = f"{numbers.rate(pacing.rate)} sent, {numbers.rate(pacing.planned_rate)} planned"
    yield "Submitted late, p99", numbers.duration(pacing.p99), sent if pacing.count else "no data"


def notes(result: Result) -> Iterator[str]:
    """Yield limits of the measurement."""
    if result.state == "Running":
        yield "The Run is not over: the numbers are interim."
    if result.state == "Cancelled":
        yield "The Run was cancelled."
    for gap in result.gaps:
        seconds = (gap.end - gap.start).total_seconds()
        start = svg_plot.elapsed((gap.start - result.start).total_seconds())
        yield f"Gap of {numbers.duration(seconds)} from {start}: {gap.why}."
    missing = max((latency.missing for latency in result.latencies if latency.clock is Clock.WATCH), default=0)
    if missing:
        yield f"Up to {missing:,} objects are missing from latencies by the watch clock."
    if result.pacing.refused:
        yield f"The API server rejected {result.pacing.refused:,} objects."


def gates(results: Sequence[tuple[Cell | None, Result]]) -> str:
    """Return the gates of all Runs."""
    head = markup.texts(*(["run"] if len(results) > 1 else []), "gate", "verdict", "wanted", "got", "clock", "why")
    rows = [
        [*([tag] if tag else []), *_gate(gate)]
        for tag, result in results
        for gate in sorted(result.gates, key=lambda item: item.passed)
    ]
    return markup.table(head, rows) or '<p class="soft">The Wave has no gates: <code>expect</code> is not set.</p>'


def _gate(gate: GateResult) -> Iterator[Cell]:
    verdict = numbers.NO_DATA if gate.no_data else "passed" if gate.passed else "failed"
    yield Cell(gate.name, "text")
    yield Cell({"passed": "✓ passed", "failed": "✕ failed"}.get(verdict, f"? {verdict}"), f"text {_style(verdict)}")
    yield from markup.texts(gate.want, gate.got, gate.clock or "")
    yield Cell(gate.why, "text long")


def _style(verdict: str) -> str:
    return verdict.replace(" ", "")


def badge(result: Result) -> str:
    """Return the verdict on the gates as a badge."""
    verdict = numbers.verdict(result)
    sign = {"passed": "✓ ", "failed": "✕ "}.get(verdict, "")
    return f'<span class="badge {_style(verdict)}">{sign}{escape(verdict)}</span>'


def latencies(result: Result) -> str:
    """Return all latencies, with ClusterLoader2's definitions in a separate table."""
    ours = [latency for latency in result.latencies if latency.clock not in CLUSTERLOADER2]
    clusterloader2 = [latency for latency in result.latencies if latency.clock in CLUSTERLOADER2]
    return _latency_table(ours) + markup.details("ClusterLoader2's definitions", _latency_table(clusterloader2))


def _latency_table(latencies: Sequence[Latency]) -> str:
    head: Row = [*markup.texts("latency", "clock"), "known", "missing", *numbers.STATISTICS]
    rows: list[Row] = []
    last = None
    for latency in sorted(latencies, key=lambda item: (item.of != "pods", item.of)):
        if latency.of != last:
            rows.append([latency.of])
        last = latency.of
        values = (numbers.duration(getattr(latency, name)) for name in numbers.STATISTICS)
        title = Cell(latency.name, "text", STEPS.get(latency.name, ""))
        rows.append([title, Cell(latency.clock, "text"), f"{latency.count:,}", f"{latency.missing:,}", *values])
    return markup.table(head, rows)


def counts(result: Result) -> str:
    """Return the counts of objects and pods."""
    names = list(Counts.model_fields)
    groups = [(f"{result.template_kind or 'object'}s", result.objects)]
    groups += [("Pods", result.pods)] if result.template_kind != "Pod" else []
    rows = ([title, *(f"{getattr(group, name):,}" for name in names)] for title, group in groups)
    return markup.table(["", *("ran" if name == "running" else name for name in names)], rows)


def rates(result: Result) -> str:
    """Return the scheduling throughput and the lateness of submissions."""
    statistics, pacing = ("mean", "p50", "p90", "p99", "max"), result.pacing
    throughput = (
        [item.scheduler or "all schedulers", f"{item.windows:,}"]
        + [numbers.rate(getattr(item, name)) for name in statistics]
        for item in result.throughput
    )
    late = (numbers.duration(getattr(pacing, name)) for name in statistics[1:])
    sent = (f"{pacing.count:,}", numbers.rate(pacing.planned_rate), numbers.rate(pacing.rate))
    return (
        markup.table([*markup.texts("scheduled per second"), "windows", *statistics], throughput)
        + "<br>"
        + markup.table(
            [*markup.texts("submitted"), "planned rate", "rate", "late p50", *statistics[2:], "retried", "rejected"],
            [[*sent, *late, f"{pacing.retried:,}", f"{pacing.refused:,}"]],
        )
    )


def failures(result: Result) -> str:
    """Return the failures."""
    rows: list[Row] = [
        [Cell(group.what, "text long"), f"{group.count:,}", Cell(group.example, "text")] for group in result.troubles
    ]
    return markup.table([Cell("reason", "text"), "count", Cell("first object", "text")], rows)


def marks(result: Result) -> str:
    """Return the numbered marks of the timeline."""
    times = (svg_plot.elapsed((mark.at - result.start).total_seconds()) for mark in result.marks)
    rows = (f"<li><b>{escape(mark.what)}</b> at {at}</li>" for mark, at in zip(result.marks, times, strict=True))
    return f'<ol class="marks">{"".join(rows)}</ol>' if result.marks else ""


# ----------------------------------------------------------------------------------------
# several Runs


def comparison(names: Sequence[Cell], results: Sequence[Result]) -> str:
    """Return Runs side by side, with differences relative to the first."""
    compared = [compare.compare(results[0], result) for result in results]
    head = [Cell("", "text"), *(Cell(name.text, name.style.replace("text ", "")) for name in names)]
    rows: list[Row] = [["time until the last object ended", *_lengths(results)]]
    for group, lines in _groups(results[0]):
        known: list[Row] = []
        for title, key in lines:
            deltas = [_find(item, key) for item in compared]
            if any(delta and delta.after is not None for delta in deltas):
                known.append([title, *(_delta(delta, first=not at) for at, delta in enumerate(deltas))])
        rows += [[group], *known] if known else []
    notes = {note for item in compared[1:] for note in item.notes}
    return markup.table(head, rows, "few" if len(results) <= _FEW else "") + markup.notes(sorted(notes))


def _lengths(results: Sequence[Result]) -> Iterator[Cell]:
    base = numbers.length(results[0])
    for place, result in enumerate(results):
        seconds = numbers.length(result)
        by = seconds - base if place and seconds is not None and base is not None else None
        below = numbers.change(by, by / base if base else None, Unit.SECONDS) if by is not None else ""
        yield Cell(numbers.duration(seconds), "", below)


_Key = tuple[str, str, str, Clock | None]


def _groups(base: Result) -> Iterator[tuple[str, Sequence[tuple[str, _Key]]]]:
    counts = [(name, ("objects", "count", name, None)) for name in ("completed", "failed")]
    yield f"{base.template_kind or 'object'}s", counts
    for of in dict.fromkeys(("pods", base.template_kind)):
        for name, statistics in _COMPARED:
            if latency := numbers.main_latency(base, name, of):
                title = f"{of}: {STEPS[name]} ({name}, clock: {latency.clock})"
                yield title, [(item, (of, name, item, latency.clock)) for item in statistics]
    yield "scheduled per second", [(item, ("pods", "throughput", item, None)) for item in ("mean", "max")]
    yield "submitted late", [(item, ("objects", "lateness", item, None)) for item in ("p50", "p99")]


def _find(comparison: Comparison, key: _Key) -> Delta | None:
    matching = (delta for delta in comparison.deltas if (delta.of, delta.name, delta.statistic, delta.clock) == key)
    return next(matching, None)


def _delta(delta: Delta | None, *, first: bool) -> Cell:
    if delta is None or delta.after is None:
        return Cell(numbers.NO_DATA)
    text = numbers.amount(delta.after, delta.unit)
    if first or delta.change is None:
        return Cell(text)
    style = delta.verdict.value if delta.verdict in (DeltaVerdict.BETTER, DeltaVerdict.WORSE) else ""
    word = f", {delta.verdict}" if style else ""
    return Cell(text, style, numbers.change(delta.change, delta.ratio, delta.unit) + word)
