"""A Result as text: tables, sparklines, gates, and notes about the quality of the data."""

import sys
from collections.abc import Iterator, Sequence

import typer

from kwokfleet.cli import output
from kwokfleet.measure.result import Clock, Latency, Result
from kwokfleet.report import numbers
from kwokfleet.report.html import svg_plot, tables

WIDTH = 60
"""Characters of a sparkline."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
_SPARKS = ("pending", "running", "queued", "submitted/s", "scheduled/s", "completed/s")


def lines(result: Result) -> Iterator[str]:
    """Yield the lines of the report of a Run."""
    yield f"{output.styled(result.name, bold=True)}   {_verdict(numbers.verdict(result))}"
    yield ", ".join(_about(result))
    yield ""
    yield f"{result.template_kind or 'object'}s: {numbers.sentence(result.objects)}"
    if result.template_kind != "Pod":
        yield f"pods: {numbers.sentence(result.pods)}"
    for build in (_latencies, _rates, _over_time, _gates, _warnings):
        section = list(build(result))
        yield from ("", *section) if section else ()


def _about(result: Result) -> Iterator[str]:
    yield f"started {numbers.instant(result.start)}"
    took = f" after {numbers.duration(numbers.length(result))}" if result.end else ""
    yield {"Done": f"complete{took}", "Running": "still running", "Cancelled": f"cancelled{took}"}[result.state]
    yield from (f"{name} {value}" for name, value in (("on", result.cluster), ("files", result.revision)) if value)


def _latencies(result: Result) -> Iterator[str]:
    rows = [_latency_row(latency) for latency in result.latencies if _is_shown(latency)]
    if rows:
        yield output.table(rows)


def _latency_row(latency: Latency) -> dict[str, object]:
    row: dict[str, object] = {"latency": latency.name, "of": latency.of, "clock": latency.clock.value}
    row |= {"known": f"{latency.count:,}", "missing": f"{latency.missing:,}"}
    return row | {name: numbers.duration(getattr(latency, name)) for name in numbers.STATISTICS}


def _is_shown(latency: Latency) -> bool:
    """Return whether a latency is in the text report; other formats have all latencies."""
    if latency.clock in (Clock.CL2_2024, Clock.CL2_2026):
        return (latency.of, latency.name) == ("pods", "pod_startup")
    return not latency.of.startswith("pods/state")


def _rates(result: Result) -> Iterator[str]:
    for throughput in result.throughput:
        of = f" by {throughput.scheduler}" if throughput.scheduler else ""
        statistics = ", ".join(
            f"{name} {numbers.rate(getattr(throughput, name))}" for name in ("mean", "p50", "p99", "max")
        )
        window = f"{throughput.windows:,} windows of {throughput.window_s:g} s"
        yield f"scheduled{of}: {f'{statistics} ({window})' if throughput.windows else numbers.NO_DATA}"
    pacing = result.pacing
    if pacing.count:
        late = ", ".join(f"{name} {numbers.duration(getattr(pacing, name))}" for name in ("p50", "p99", "max"))
        rates = f"{numbers.rate(pacing.rate)}, planned {numbers.rate(pacing.planned_rate)}"
        yield f"submitted: {rates}; late {late}; {pacing.retried:,} retried, {pacing.refused:,} refused"
    else:
        yield f"submitted: {numbers.NO_DATA}"


def _over_time(result: Result) -> Iterator[str]:
    if not result.series:
        return
    columns = result.series.columns
    shown = [name for name in _SPARKS if name in columns]
    shown += sorted(name for name in columns if name.startswith("utilisation/"))
    width = max(map(len, shown), default=0)
    seconds = max((len(columns[name]) for name in shown), default=0) * result.series.step_s
    yield f"{'over time'.ljust(width)}  0{svg_plot.elapsed(seconds).rjust(WIDTH - 1)}"
    for name in shown:
        samples = [value for value in columns[name] if value is not None]
        form = numbers.share if name.startswith("utilisation/") else numbers.count
        statistics = (
            f"mean {form(sum(samples) / len(samples))}, peak {form(max(samples))}" if samples else numbers.NO_DATA
        )
        yield f"{name.ljust(width)}  {spark(columns[name])}  {statistics}"


def spark(values: Sequence[float | None], width: int = WIDTH) -> str:
    """Return a sparkline: each block is the maximum of its time; blank without data."""
    blocks = _BLOCKS if output.can_print(_BLOCKS, sys.stdout.encoding) else _ASCII
    most = max((value for value in values if value is not None), default=0.0)
    text = ""
    for place in range(width if values else 0):
        first, last = (len(values) * index // width for index in (place, place + 1))
        samples = [value for value in values[first : max(last, first + 1)] if value is not None]
        text += blocks[int(max(samples) / most * 7.999) if most else 0] if samples else " "
    return text.ljust(width)


def _gates(result: Result) -> Iterator[str]:
    if not result.gates:
        yield "gates: none"
        return
    names = max(len(gate.name) for gate in result.gates)
    for gate in result.gates:
        verdict = numbers.NO_DATA if gate.no_data else "passed" if gate.passed else "failed"
        clock = f" ({gate.clock})" if gate.clock else ""
        got = "" if gate.got == verdict else f", got {gate.got}{clock}"
        why = f": {gate.why}" if gate.why else ""
        yield f"{_verdict(verdict)}  {gate.name.ljust(names)}  wanted {gate.want}{got}{why}"


def _warnings(result: Result) -> Iterator[str]:
    for note in tables.notes(result):
        yield f"{output.styled('note', typer.colors.YELLOW)}: {note}"
    for trouble in result.troubles:
        label = output.styled("trouble", typer.colors.RED)
        yield f"{label}: {trouble.what}: {trouble.count:,} times, first {trouble.example}"


def _verdict(text: str) -> str:
    colors = {"passed": typer.colors.GREEN, "failed": typer.colors.RED, numbers.NO_DATA: typer.colors.YELLOW}
    return output.styled(text, colors.get(text))
