"""Figures of the HTML report: time series, distributions, timeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kwokfleet.measure.result import Clock, Latency, PodTimes, Result, Series
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
        known = [each for each in columns if each in names]
        titles = tuple((each, each.removesuffix("/s")) for each in known)
        yield _Chart(title, kind, titles, tuple(columns[each] for each in known))
    used = [each for each in names if each.startswith("utilisation/")]
    shown = sorted(used, key=lambda each: (not each.startswith("utilisation/*"), -_maximum(series.columns[each]), each))
    more = f", the {MAX_LINES} highest of {len(used)}" if len(used) > MAX_LINES else ""
    pools = tuple((each, _pool_title(each)) for each in shown[:MAX_LINES])
    yield _Chart(f"Requests as a share of pool capacity{more}", "share", pools)
    for prefix, title, kind in _BY_SCHEDULER:
        by_scheduler = [each for each in names if each.startswith(prefix)]
        if len(by_scheduler) > 1:
            yield _Chart(title, kind, tuple((each, each.removeprefix(prefix)) for each in by_scheduler[:MAX_LINES]))


def _pool_title(column: str) -> str:
    _, pool, resource = column.split("/", 2)
    return f"{'all pools' if pool == '*' else pool}: {resource}"


def _maximum(values: Iterable[float | None]) -> float:
    return max((each for each in values if each is not None), default=0.0)


def over_time(results: Sequence[Result]) -> list[str]:
    """Return the time series of each Run, with common scales."""
    found = [list(_charts(each.series)) if each.series else [] for each in results]
    seconds = max((length(each) for each in results), default=1.0)
    most: dict[str, float] = {}
    for made, charts in zip(results, found, strict=True):
        for chart in charts:
            top = max((_maximum(made.series.columns[name]) for name, _ in chart.columns if made.series), default=0.0)
            most[chart.title] = max(most.get(chart.title, 0.0), top)
    return [
        "".join(_chart(made, chart, seconds, most[chart.title], _pointer(made)) for chart in charts if chart.columns)
        for made, charts in zip(results, found, strict=True)
    ]


def _pointer(made: Result) -> str:
    """Return the group of plots that share a pointer."""
    return f"{made.name} {made.start.timestamp():.0f}"


def _chart(made: Result, chart: _Chart, seconds: float, most: float, group: str) -> str:
    found = made.series
    if found is None:
        return ""
    first = (found.start - made.start).total_seconds()
    scale = 100.0 if chart.kind == "share" else 1.0
    lines = [
        PlotLine(title, svg_plot.level_path(_scaled(found.columns[name], scale), found.step_s, first), colour)
        for colour, (name, title) in zip(chart.colours, chart.columns, strict=False)
    ]
    unit = {"share": "%", "rate": "/s"}.get(chart.kind, "")
    axis = svg_plot.value_axis(most * scale, unit)
    when = [(each.at - made.start).total_seconds() for each in made.marks]
    return svg_plot.figure(chart.title, lines, svg_plot.time_axis(seconds), axis, chart.kind, bands(made), when, group)


def _scaled(values: Sequence[float | None], scale: float) -> Sequence[float | None]:
    return values if scale == 1 else [None if each is None else each * scale for each in values]


def length(made: Result) -> float:
    """Return the length of a Run's time axis in seconds."""
    ends = [1.0, numbers.length(made) or 0.0]
    if made.series:
        steps = max((len(each) for each in made.series.columns.values()), default=0)
        ends.append((made.series.start - made.start).total_seconds() + max(0, steps - 1) * made.series.step_s)
    return max(ends)


def bands(made: Result) -> list[Band]:
    """Return the gaps."""
    return [
        Band((each.start - made.start).total_seconds(), (each.end - made.start).total_seconds(), each.why)
        for each in made.gaps
    ]


# ----------------------------------------------------------------------------------------
# distributions


def distributions(made: Result) -> str:
    """Return the latency distributions of one Run, by clock."""
    groups: dict[str, list[PlotLine]] = {}
    for each in made.latencies:
        if each.cdf and (title := _title(each)):
            groups.setdefault(title, []).append(_by_clock(each))
    schedulers = [each for each in made.latencies if each.of.startswith("pods/scheduler=") and each.cdf]
    made_of = [each for each in schedulers if each.name == "scheduling" and each.clock is Clock.WATCH]
    if len(made_of) > 1:
        groups["Pods: scheduling, by scheduler"] = [
            PlotLine(each.of.partition("=")[2], svg_plot.step_path(each.cdf), place % MAX_LINES + 1)
            for place, each in enumerate(made_of)
        ]
    tops = _tops(made.latencies)
    tops["Pods: scheduling, by scheduler"] = max((each.cdf[-1][0] for each in made_of), default=0.0)
    return "".join(_distribution(title, lines, tops[title]) for title, lines in groups.items())


def _title(each: Latency) -> str:
    """Return the title of a latency's plot; empty if it has none."""
    if each.clock in tables.CLUSTERLOADER2:
        return "Pods: startup, ClusterLoader2's definitions" if (each.of, each.name) == ("pods", "pod_startup") else ""
    if each.of.startswith("pods/"):
        return ""
    return f"{each.of.capitalize()}{'' if each.of == 'pods' else 's'}: {tables.STEPS.get(each.name, each.name)}"


def _tops(found: Iterable[Latency]) -> dict[str, float]:
    tops: dict[str, float] = {}
    for each in found:
        if each.cdf:
            tops[_title(each)] = max(tops.get(_title(each), 0.0), each.cdf[-1][0])
    return tops


def _by_clock(each: Latency) -> PlotLine:
    colour = _CLOCK_COLOURS[each.clock]
    return PlotLine(each.clock, svg_plot.step_path(each.cdf), colour, dashed=colour > 1)


def compared_distributions(names: Sequence[str], results: Sequence[Result]) -> str:
    """Return the latency distributions of several Runs, by the best clock of the first."""
    made = []
    for base in results[0].latencies:
        same = [each.latency(base.name, base.of, base.clock) for each in results]
        known = [each for each in same if each and each.cdf]
        if not known or not (title := _title(base)) or not _best(results[0], base):
            continue
        lines = [
            PlotLine(names[place], svg_plot.step_path(each.cdf if each else ()), place % MAX_LINES + 1)
            for place, each in enumerate(same)
        ]
        made.append(_distribution(f"{title} ({base.clock})", lines, max(each.cdf[-1][0] for each in known)))
    return "".join(made)


def _best(made: Result, each: Latency) -> bool:
    return each.clock in tables.CLUSTERLOADER2 or numbers.main_latency(made, each.name, each.of) is each


def _distribution(title: str, lines: Sequence[PlotLine], top: float) -> str:
    return svg_plot.figure(title, lines, svg_plot.duration_axis(top), svg_plot.share_axis(), "cdf")


# ----------------------------------------------------------------------------------------
# timeline


def timeline(made: Result, pods: Iterable[PodTimes]) -> str:
    """Return the timeline: waiting and running pods, submissions, and marks."""
    seconds = length(made)
    above = _flags(made, seconds) + _strip(made, seconds)
    drawn = gantt.picture(pods, made.start.timestamp(), seconds, bands(made), above)
    return drawn.replace("</figure>", f"{tables.marks(made)}</figure>") if drawn else ""


def _flags(made: Result, seconds: float) -> str:
    """Return the numbers of the marks at their positions. Close marks share a flag."""
    places: list[tuple[float, list[int]]] = []
    for number, each in enumerate(made.marks, 1):
        share = min(1.0, max(0.0, (each.at - made.start).total_seconds() / seconds))
        if places and share - places[-1][0] < _FLAG_SHARE:
            places[-1][1].append(number)
        else:
            places.append((share, [number]))
    flags = (
        f'<span style="left:{100 * share:.4g}%">{each[0] if len(each) == 1 else f"{each[0]}-{each[-1]}"}</span>'
        for share, each in places
    )
    return f'<div class="flags">{"".join(flags)}</div>' if made.marks else ""


def _strip(made: Result, seconds: float) -> str:
    """Return the submissions as a strip. Darker means a higher rate."""
    found = made.series.columns.get("submitted/s") if made.series else None
    if not found or not made.series or not _maximum(found):
        return ""
    first, step = (made.series.start - made.start).total_seconds(), made.series.step_s
    most, scale = _maximum(found), gantt.COLUMNS / seconds
    sums = [0.0] * gantt.COLUMNS
    for place, each in enumerate(found):  # a rate belongs to the step that ends there
        start, end = (int((first + (place + by) * step) * scale) for by in (-1, 0))
        for column in range(max(0, start), min(gantt.COLUMNS, max(start + 1, end))):
            sums[column] = max(sums[column], each or 0.0)
    paths: dict[int, str] = {}
    for column, each in enumerate(sums):
        if each:
            level = max(1, round(_STRIP_LEVELS * each / most))
            paths[level] = paths.get(level, "") + f"M{column},0h1v1h-1z"
    return _strip_svg(paths)


def _strip_svg(paths: Mapping[int, str]) -> str:
    filled = "".join(f'<path class="l{level}" d="{path}"/>' for level, path in sorted(paths.items()))
    return (
        f'<svg class="strip" viewBox="0 0 {gantt.COLUMNS} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="objects submitted per second"><title>objects submitted per second</title>{filled}</svg>'
    )
