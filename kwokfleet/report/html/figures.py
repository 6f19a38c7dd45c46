"""Figures of the HTML report: time series, distributions, timeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kwokfleet.measure.result import CLUSTERLOADER2, Clock, Latency, PodTimes, Result, Series
from kwokfleet.report import numbers
from kwokfleet.report.html import gantt, svg_plot, tables
from kwokfleet.report.html.svg_plot import Band, PlotLine

MAX_LINES = 8
"""Number of colours."""
_CLOCK_COLOURS = {Clock.WATCH: 1, Clock.API: 2, Clock.CL2_2024: 2, Clock.CL2_2026: 1}
_STRIP_LEVELS = 6
_FLAG_SHARE = 0.03
"""Share of the width. Closer flags are merged."""
_LEVELS = {"pending": 2, "running": 1, "queued": 4}
_BY_SCHEDULER = (
    ("pending/", "Pending, by scheduler", "count"),
    ("scheduled/s/", "Scheduled per second, by scheduler", "rate"),
)
_RATES = {"submitted/s": 3, "scheduled/s": 4, "completed/s": 1}
"""Columns with their colours, as in the timeline."""


@dataclass(frozen=True, slots=True)
class _Chart:
    """Columns of a Series that share a plot."""

    title: str
    kind: str
    """count, rate or share."""
    columns: tuple[tuple[str, str], ...]
    """Name and title of each."""
    colours: tuple[int, ...] = tuple(range(1, MAX_LINES + 1))


def _charts(series: Series) -> Iterator[_Chart]:
    names = list(series.columns)
    for title, kind, columns in (("Pods", "count", _LEVELS), ("Per second", "rate", _RATES)):
        known = [name for name in columns if name in names]
        titles = tuple((name, name.removesuffix("/s")) for name in known)
        yield _Chart(title, kind, titles, tuple(columns[name] for name in known))
    used = [name for name in names if name.startswith("utilisation/")]
    used.sort(key=lambda name: (not name.startswith("utilisation/*"), -_maximum(series.columns[name]), name))
    more = f", the {MAX_LINES} highest of {len(used)}" if len(used) > MAX_LINES else ""
    pools = tuple((name, _pool_title(name)) for name in used[:MAX_LINES])
    yield _Chart(f"Requests as a share of pool capacity{more}", "share", pools)
    for prefix, title, kind in _BY_SCHEDULER:
        by_scheduler = [name for name in names if name.startswith(prefix)]
        if len(by_scheduler) > 1:
            yield _Chart(title, kind, tuple((name, name.removeprefix(prefix)) for name in by_scheduler[:MAX_LINES]))


def _pool_title(column: str) -> str:
    _, pool, resource = column.split("/", 2)
    return f"{'all pools' if pool == '*' else pool}: {resource}"


def _maximum(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def over_time(results: Sequence[Result]) -> list[str]:
    """Return the time series of each Run, with common scales."""
    seconds = max(map(length, results), default=1.0)
    most: dict[str, float] = {}
    for series in (result.series for result in results if result.series):
        for chart in _charts(series):
            top = max((_maximum(series.columns[name]) for name, _ in chart.columns), default=0.0)
            most[chart.title] = max(most.get(chart.title, 0.0), top)
    return ["".join(_run_charts(result, seconds, most)) for result in results]


def _run_charts(result: Result, seconds: float, most: Mapping[str, float]) -> Iterator[str]:
    if result.series:
        for chart in _charts(result.series):
            if chart.columns:
                yield _chart(result, result.series, chart, seconds, most[chart.title])


def _chart(result: Result, series: Series, chart: _Chart, seconds: float, most: float) -> str:
    first = (series.start - result.start).total_seconds()
    scale = 100.0 if chart.kind == "share" else 1.0
    lines = [
        PlotLine(title, svg_plot.level_path(_scaled(series.columns[name], scale), series.step_s, first), colour)
        for colour, (name, title) in zip(chart.colours, chart.columns, strict=False)
    ]
    unit = {"share": "%", "rate": "/s"}.get(chart.kind, "")
    axis = svg_plot.value_axis(most * scale, unit)
    mark_times = [(mark.at - result.start).total_seconds() for mark in result.marks]
    group = f"{result.name} {result.start.timestamp():.0f}"
    return svg_plot.figure(
        chart.title, lines, svg_plot.time_axis(seconds), axis, chart.kind, bands(result), mark_times, group
    )


def _scaled(values: Sequence[float | None], scale: float) -> Sequence[float | None]:
    return values if scale == 1 else [None if value is None else value * scale for value in values]


def length(result: Result) -> float:
    """Return the length of a Run's time axis in seconds."""
    ends = [1.0, numbers.length(result) or 0.0]
    if result.series:
        steps = max((len(value) for value in result.series.columns.values()), default=0)
        ends.append((result.series.start - result.start).total_seconds() + max(0, steps - 1) * result.series.step_s)
    return max(ends)


def bands(result: Result) -> list[Band]:
    """Return the gaps."""
    spans = ((gap.start - result.start, gap.end - result.start, gap.why) for gap in result.gaps)
    return [Band(start.total_seconds(), end.total_seconds(), why) for start, end, why in spans]


# ----------------------------------------------------------------------------------------
# distributions


def distributions(result: Result) -> str:
    """Return the latency distributions of one Run, by clock."""
    groups: dict[str, list[Latency]] = {}
    for latency in result.latencies:
        if latency.cdf and (title := _title(latency)):
            groups.setdefault(title, []).append(latency)
    plots = [_distribution(title, map(_by_clock, group), group) for title, group in groups.items()]
    schedulers = [latency for latency in result.latencies if latency.of.startswith("pods/scheduler=") and latency.cdf]
    by_scheduler = [latency for latency in schedulers if latency.name == "scheduling" and latency.clock is Clock.WATCH]
    if len(by_scheduler) > 1:
        lines = _coloured([latency.of.partition("=")[2] for latency in by_scheduler], by_scheduler)
        plots.append(_distribution("Pods: scheduling, by scheduler", lines, by_scheduler))
    return "".join(plots)


def _title(latency: Latency) -> str:
    """Return the title of a latency's plot; empty if it has none."""
    if latency.clock in CLUSTERLOADER2:
        is_startup = (latency.of, latency.name) == ("pods", "pod_startup")
        return "Pods: startup, ClusterLoader2's definitions" if is_startup else ""
    if latency.of.startswith("pods/"):
        return ""
    plural = "" if latency.of == "pods" else "s"
    return f"{latency.of.capitalize()}{plural}: {tables.STEPS.get(latency.name, latency.name)}"


def _by_clock(latency: Latency) -> PlotLine:
    colour = _CLOCK_COLOURS[latency.clock]
    return PlotLine(latency.clock, svg_plot.step_path(latency.cdf), colour, dashed=colour > 1)


def _coloured(titles: Iterable[str], latencies: Iterable[Latency | None]) -> Iterator[PlotLine]:
    for place, (title, latency) in enumerate(zip(titles, latencies, strict=True)):
        yield PlotLine(title, svg_plot.step_path(latency.cdf if latency else ()), place % MAX_LINES + 1)


def compared_distributions(names: Sequence[str], results: Sequence[Result]) -> str:
    """Return the latency distributions of several Runs, by the best clock of the first."""
    plots = []
    for base in results[0].latencies:
        same = [result.latency(base.name, base.of, base.clock) for result in results]
        known = [latency for latency in same if latency and latency.cdf]
        is_best = base.clock in CLUSTERLOADER2 or numbers.main_latency(results[0], base.name, base.of) is base
        if known and is_best and (title := _title(base)):
            plots.append(_distribution(f"{title} ({base.clock})", _coloured(names, same), known))
    return "".join(plots)


def _distribution(title: str, lines: Iterable[PlotLine], latencies: Iterable[Latency]) -> str:
    axis = svg_plot.duration_axis(max(latency.cdf[-1][0] for latency in latencies))
    return svg_plot.figure(title, list(lines), axis, svg_plot.share_axis(), "cdf")


# ----------------------------------------------------------------------------------------
# timeline


def timeline(result: Result, pods: Iterable[PodTimes]) -> str:
    """Return the timeline: waiting and running pods, submissions, and marks."""
    seconds = length(result)
    above = _flags(result, seconds) + _strip(result, seconds)
    drawn = gantt.picture(pods, result.start.timestamp(), seconds, bands(result), above)
    return drawn.replace("</figure>", f"{tables.marks(result)}</figure>") if drawn else ""


def _flags(result: Result, seconds: float) -> str:
    """Return the numbers of the marks at their positions. Close marks share a flag."""
    places: list[tuple[float, list[int]]] = []
    for number, mark in enumerate(result.marks, 1):
        share = min(1.0, max(0.0, (mark.at - result.start).total_seconds() / seconds))
        if places and share - places[-1][0] < _FLAG_SHARE:
            places[-1][1].append(number)
        else:
            places.append((share, [number]))
    flags = (
        f'<span style="left:{100 * share:.4g}%">{marks[0] if len(marks) == 1 else f"{marks[0]}-{marks[-1]}"}</span>'
        for share, marks in places
    )
    return f'<div class="flags">{"".join(flags)}</div>' if result.marks else ""


def _strip(result: Result, seconds: float) -> str:
    """Return the submissions as a strip. Darker means a higher rate."""
    series = result.series
    rates = series.columns.get("submitted/s", ()) if series else ()
    highest, scale = _maximum(rates), gantt.COLUMNS / seconds
    if not series or not highest:
        return ""
    first, step = (series.start - result.start).total_seconds(), series.step_s
    column_rates = [0.0] * gantt.COLUMNS
    for step_number, rate in enumerate(rates):  # a rate belongs to the step that ends there
        start, end = (int((first + (step_number + by) * step) * scale) for by in (-1, 0))
        for column in range(max(0, start), min(gantt.COLUMNS, max(start + 1, end))):
            column_rates[column] = max(column_rates[column], rate or 0.0)
    paths: dict[int, str] = {}
    for column, column_rate in enumerate(column_rates):
        if column_rate:
            level = max(1, round(_STRIP_LEVELS * column_rate / highest))
            paths[level] = paths.get(level, "") + f"M{column},0h1v1h-1z"
    filled = "".join(f'<path class="l{level}" d="{path}"/>' for level, path in sorted(paths.items()))
    return (
        f'<svg class="strip" viewBox="0 0 {gantt.COLUMNS} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="objects submitted per second"><title>objects submitted per second</title>{filled}</svg>'
    )
