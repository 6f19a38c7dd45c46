"""A Result as text: tables, sparklines, gates, and notes about the quality of the data."""

import sys
from collections.abc import Iterator, Sequence

import typer

from kwokfleet.cli import output, plan_view
from kwokfleet.measure.result import Clock, Latency, Result
from kwokfleet.report import numbers
from kwokfleet.report.html import svg_plot, tables

WIDTH = 60
"""Characters of a sparkline."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
_SPARKS = ("pending", "running", "queued", "submitted/s", "scheduled/s", "completed/s")


def can_print(text: str) -> bool:
    """Return whether the encoding of standard output supports a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def lines(made: Result) -> Iterator[str]:
    """Yield the lines of the report of a Run."""
    yield f"{_bold(made.name)}   {_verdict(numbers.verdict(made))}"
    yield ", ".join(_about(made))
    yield ""
    yield f"{made.template_kind or 'object'}s: {numbers.sentence(made.objects)}"
    if made.template_kind != "Pod":
        yield f"pods: {numbers.sentence(made.pods)}"
    for part in (_latencies, _rates, _over_time, _gates, _warnings):
        found = list(part(made))
        yield from ("", *found) if found else ()


def _about(made: Result) -> Iterator[str]:
    yield f"started {numbers.instant(made.start)}"
    took = f" after {numbers.duration(numbers.length(made))}" if made.end else ""
    yield {"Done": f"complete{took}", "Running": "still running", "Cancelled": f"cancelled{took}"}[made.state]
    yield from (f"{name} {value}" for name, value in (("on", made.cluster), ("files", made.revision)) if value)


def _latencies(made: Result) -> Iterator[str]:
    rows = [_latency(each) for each in made.latencies if _listed(each)]
    if rows:
        yield output.table(rows)


def _latency(each: Latency) -> dict[str, object]:
    row: dict[str, object] = {"latency": each.name, "of": each.of, "clock": each.clock.value}
    row |= {"known": f"{each.count:,}", "missing": f"{each.missing:,}"}
    return row | {name: numbers.duration(getattr(each, name)) for name in numbers.STATISTICS}


def _listed(each: Latency) -> bool:
    """Return whether a latency is in the text report; other formats have all latencies."""
    theirs = each.clock in (Clock.CL2_2024, Clock.CL2_2026)
    return (each.of, each.name) == ("pods", "pod_startup") if theirs else not each.of.startswith("pods/state")


def _rates(made: Result) -> Iterator[str]:
    for each in made.throughput:
        of = f" by {each.scheduler}" if each.scheduler else ""
        told = ", ".join(f"{name} {numbers.rate(getattr(each, name))}" for name in ("mean", "p50", "p99", "max"))
        window = f"{each.windows:,} windows of {each.window_s:g} s"
        yield f"scheduled{of}: {f'{told} ({window})' if each.windows else numbers.NO_DATA}"
    pacing = made.pacing
    if pacing.count:
        late = ", ".join(f"{name} {numbers.duration(getattr(pacing, name))}" for name in ("p50", "p99", "max"))
        rates = f"{numbers.rate(pacing.rate)}, planned {numbers.rate(pacing.planned_rate)}"
        yield f"submitted: {rates}; late {late}; {pacing.retried:,} retried, {pacing.refused:,} refused"
    else:
        yield f"submitted: {numbers.NO_DATA}"


def _over_time(made: Result) -> Iterator[str]:
    if not made.series:
        return
    columns = made.series.columns
    shown = [name for name in _SPARKS if name in columns]
    shown += sorted(name for name in columns if name.startswith("utilisation/"))
    width = max(map(len, shown), default=0)
    seconds = max((len(columns[name]) for name in shown), default=0) * made.series.step_s
    yield f"{'over time'.ljust(width)}  0{svg_plot.elapsed(seconds).rjust(WIDTH - 1)}"
    for name in shown:
        known = [each for each in columns[name] if each is not None]
        form = numbers.share if name.startswith("utilisation/") else numbers.count
        told = f"mean {form(sum(known) / len(known))}, peak {form(max(known))}" if known else numbers.NO_DATA
        yield f"{name.ljust(width)}  {spark(columns[name])}  {told}"


def spark(values: Sequence[float | None], width: int = WIDTH) -> str:
    """Return a sparkline: each block is the maximum of its time; blank without data."""
    blocks = _BLOCKS if can_print(_BLOCKS) else _ASCII
    most = max((each for each in values if each is not None), default=0.0)
    text = ""
    for place in range(width if values else 0):
        first, last = (len(values) * each // width for each in (place, place + 1))
        known = [each for each in values[first : max(last, first + 1)] if each is not None]
        text += blocks[int(max(known) / most * 7.999) if most else 0] if known else " "
    return text.ljust(width)


def _gates(made: Result) -> Iterator[str]:
    if not made.gates:
        yield "gates: none"
        return
    names = max(len(each.name) for each in made.gates)
    for gate in made.gates:
        verdict = numbers.NO_DATA if gate.no_data else "passed" if gate.passed else "failed"
        clock = f" ({gate.clock})" if gate.clock else ""
        got = "" if gate.got == verdict else f", got {gate.got}{clock}"
        why = f": {gate.why}" if gate.why else ""
        yield f"{_verdict(verdict)}  {gate.name.ljust(names)}  wanted {gate.want}{got}{why}"


def _warnings(made: Result) -> Iterator[str]:
    for note in tables.notes(made):
        yield f"{_styled('note', typer.colors.YELLOW)}: {note}"
    for trouble in made.troubles:
        label = _styled("trouble", typer.colors.RED)
        yield f"{label}: {trouble.what}: {trouble.count:,} times, first {trouble.example}"


def _verdict(text: str) -> str:
    colours = {"passed": typer.colors.GREEN, "failed": typer.colors.RED, numbers.NO_DATA: typer.colors.YELLOW}
    return _styled(text, colours[text]) if text in colours else text


def _bold(text: str) -> str:
    return typer.style(text, bold=True) if plan_view.use_color() else text


def _styled(text: str, colour: str) -> str:
    return typer.style(text, fg=colour) if plan_view.use_color() else text
