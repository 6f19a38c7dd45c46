"""SVG plots that need no script and fit any width. Labels are HTML, so they keep their size.

The coordinates of a plot are the data: the script reads the values for the pointer from the paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

MAX_POINTS = 4000
"""Points of a line. Above it, minimum and maximum of each interval are kept."""
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MAX_TICKS = 6
_THIN_LINE_CHARS = 6000
"""A longer path, in characters, is drawn as a thin line."""
_AT_END = 0.95
"""Labels from this share of the axis are aligned to the right."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with its ticks."""

    top: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line, as an SVG path in data coordinates."""

    title: str
    path: str
    colour: int
    """Palette number, from 1."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded time range with its reason."""

    start: float
    end: float
    why: str


def time_axis(seconds: float) -> Axis:
    """Return an axis from 0 to a length of time."""
    top = max(seconds, 1.0)
    step = next((size for size in _TIME_STEPS_S if top / size <= _MAX_TICKS), ceil(top / 6 / 86400) * 86400)
    marks = (place * step for place in range(floor(top / step) + 1))
    return Axis(top, tuple((float(mark), elapsed(mark)) for mark in marks))


def elapsed(seconds: float) -> str:
    """Format a time since the start: `45s`, `1:30`, `2:00:00`."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004  # below a minute
        return f"{whole}s" if whole else "0"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minutes}:{second:02}"


def value_axis(most: float, unit: str = "") -> Axis:
    """Return an axis from 0 to the next round number."""
    size = most if most > 0 else 1.0
    raw = size / 4
    base = 10.0 ** floor(log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    if unit == "" and step < 1:  # counts are integers
        step = 1.0
    count = max(1, ceil(size / step - 1e-9))
    return Axis(step * count, tuple((place * step, f"{_plain(place * step)}{unit}") for place in range(count + 1)))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.6g}"  # noqa: PLR2004  # from here on, commas help


def duration_axis(seconds: float) -> Axis:
    """Return an axis of durations, in milliseconds, seconds or minutes."""
    if seconds < 1:
        axis = value_axis(max(seconds, 1e-6) * 1000, " ms")
        ticks = ((value / 1000, text.replace("1,000 ms", "1 s")) for value, text in axis.ticks)
        return Axis(axis.top / 1000, tuple(ticks))
    return value_axis(seconds, " s") if seconds < 180 else time_axis(seconds)  # noqa: PLR2004  # then minutes read better


def share_axis() -> Axis:
    """Return an axis of percentages."""
    return Axis(100.0, tuple((float(percent), f"{percent}%") for percent in (0, 25, 50, 75, 100)))


def number(value: float) -> str:
    """Format a coordinate."""
    text = f"{value:.7g}"
    return text if "e" not in text else f"{value:.9f}".rstrip("0").rstrip(".")


def level_path(values: Sequence[float | None], step: float, first: float = 0.0) -> str:
    """Return a path through values with a fixed step, with gaps for None."""
    parts, drawing = [], False
    points = [(first + x, y) for x, y in _thinned(values, step)]
    for place, (x, y) in enumerate(points):
        if y is None:
            drawing = False
            continue
        alone = not drawing and (place + 1 == len(points) or points[place + 1][1] is None)
        parts.append(f"{' ' if drawing else 'M'}{number(x)},{number(y)}{'h0' if alone else ''}")
        drawing = True
    return "".join(parts)


def _thinned(values: Sequence[float | None], step: float) -> list[tuple[float, float | None]]:
    if len(values) <= MAX_POINTS:
        return [(place * step, value) for place, value in enumerate(values)]
    size = ceil(len(values) / (MAX_POINTS // 2))
    points: list[tuple[float, float | None]] = []
    for first in range(0, len(values), size):
        known = [(place, value) for place, value in enumerate(values[first : first + size], first) if value is not None]
        if not known:
            points.append((first * step, None))
            continue
        ends = {min(known, key=lambda point: point[1]), max(known, key=lambda point: point[1])}
        points += [(place * step, value) for place, value in sorted(ends)]
    return points


def step_path(points: Sequence[tuple[float, float]]) -> str:
    """Return the path of a cumulative distribution, in percent."""
    steps = "".join(f"H{number(x)}V{number(y * 100)}" for x, y in points)
    return f"M{number(points[0][0])},0{steps}" if points else ""


def figure(  # noqa: PLR0913, PLR0917  # a plot has these
    title: str,
    lines: Sequence[PlotLine],
    x: Axis,
    y: Axis,
    kind: str,
    bands: Sequence[Band] = (),
    marks: Sequence[float] = (),
    group: str = "",
) -> str:
    """Return a plot; *kind*: the format of its values; *group*: plots that share a pointer."""
    drawn = "".join(_line(line) for line in lines if line.path)
    shaded = "".join(_band(band, y.top) for band in bands)
    marked = "".join(f"M{number(mark)},0V{number(y.top)}" for mark in marks)
    shaded += f'<path class="mark" d="{marked}"/>' if marked else ""
    svg = (
        f'<svg viewBox="0 0 {number(x.top)} {number(y.top)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><g transform="matrix(1 0 0 -1 0 {number(y.top)})">{shaded}'
        f'<path class="grid" d="{"".join(f"M0,{number(value)}H{number(x.top)}" for value, _ in y.ticks)}"/>'
        f"{drawn}</g></svg>"
    )
    body = svg if drawn else f'<p class="none">no data</p>{svg}'
    return frame(title, _legend(lines), body, x, y, f'data-kind="{kind}" data-group="{escape(group)}"')


def _legend(lines: Sequence[PlotLine]) -> str:
    if len(lines) < 2:  # noqa: PLR2004  # the title says it
        return ""
    rows = (f'<li class="c{line.colour}{" dashed" if line.dashed else ""}">{escape(line.title)}</li>' for line in lines)
    return f'<ul class="legend">{"".join(rows)}</ul>'


def frame(title: str, head: str, body: str, x: Axis, y: Axis | None, attributes: str = "") -> str:  # noqa: PLR0913, PLR0917
    """Return a figure with title, legend and axis labels."""
    left = "".join(_label("bottom", value / y.top, text) for value, text in y.ticks) if y else ""
    below = "".join(_label("left", value / x.top, text) for value, text in x.ticks)
    return (
        f'<figure {attributes}><figcaption><h3>{escape(title)}</h3>{head}</figcaption><div class="plot">'
        f'<div class="y" aria-hidden="true">{left}</div><div class="area">{body}</div>'
        f'<div class="x" aria-hidden="true">{below}</div></div></figure>\n'
    )


def _label(side: str, share: float, text: str) -> str:
    at_end = ' class="end"' if side == "left" and share > _AT_END else ""
    return f'<span{at_end} style="{side}:{share * 100:.4g}%">{escape(text)}</span>'


def _line(line: PlotLine) -> str:
    fine = " fine" if len(line.path) > _THIN_LINE_CHARS else ""
    style = f"line c{line.colour}{' dashed' if line.dashed else ''}{fine}"
    return f'<path class="{style}" data-title="{escape(line.title)}" d="{line.path}"/>'


def _band(band: Band, top: float) -> str:
    return (
        f'<rect class="gap" x="{number(band.start)}" y="0" width="{number(max(0.0, band.end - band.start))}" '
        f'height="{number(top)}"><title>{escape(band.why)}</title></rect>'
    )
