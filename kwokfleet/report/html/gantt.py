"""Gantt chart of a Run's pods, with a bounded size.

Rows are pods in the order of their creation, columns are time. With more pods than rows, a row represents many
pods, and its colour depth their number.
"""

from collections.abc import Iterable, Sequence
from html import escape

from kwokfleet.measure.result import PodTimes
from kwokfleet.report.html import svg_plot

COLUMNS = 300
MAX_ROWS = 80
_LEVELS = 6
_HEIGHT_PX = range(48, 241)
_ROW_PX = 6
_FEW_ROWS = 40


class _Spans:
    """Number of pods by row and column, stored as changes between columns."""

    def __init__(self, rows: int) -> None:
        self.changes = [[0] * (COLUMNS + 1) for _ in range(rows)]

    def add(self, row: int, first: float, last: float) -> None:
        start, end = (min(COLUMNS, max(0, column)) for column in (int(first), int(-(-last // 1))))
        if start < end:
            self.changes[row][start] += 1
            self.changes[row][end] -= 1

    def fill(self, style: str, sizes: Sequence[int]) -> str:
        """Return an SVG path for each colour depth."""
        high = ".8" if len(self.changes) <= _FEW_ROWS else "1"
        paths: dict[int, str] = {}
        for row, changes in enumerate(self.changes):
            level, since, total = 0, 0, 0
            for column, change in enumerate(changes):
                total += change
                now = -(-_LEVELS * total // sizes[row]) if column < COLUMNS else 0
                if now != level:
                    if level:
                        depth = min(level, _LEVELS)
                        paths[depth] = paths.get(depth, "") + f"M{since},{row}H{column}v{high}H{since}z"
                    level, since = now, column
        return "".join(f'<path class="{style} l{level}" d="{path}"/>' for level, path in sorted(paths.items()))


def _first(pod: PodTimes, *names: str) -> float | None:
    """Return the first known time, by the watch clock or the API clock."""
    return next((times[name] for name in names for times in (pod.seen, pod.api) if name in times), None)


def _spans(pods: Iterable[PodTimes], start: float, end: float) -> list[tuple[float, float, float]]:
    spans = []
    for pod in pods:
        created = _first(pod, "created", "scheduled", "running")
        if created is not None:
            over, ran = _first(pod, "over", "gone"), _first(pod, "running", "started")
            last = end if over is None else over
            spans.append((created - start, (last if ran is None else ran) - start, last - start))
    return sorted(spans)


def picture(pods: Iterable[PodTimes], start: float, seconds: float, bands: Sequence[svg_plot.Band], marks: str) -> str:
    """Return the figure of a Run; *marks*: HTML above the chart."""
    spans = _spans(pods, start, start + seconds)
    if not spans:
        return ""
    rows = min(MAX_ROWS, len(spans))
    waiting, running = _Spans(rows), _Spans(rows)
    sizes = [0] * rows
    scale = COLUMNS / seconds
    for place, (created, ran, over) in enumerate(spans):
        row = place * rows // len(spans)
        sizes[row] += 1
        waiting.add(row, created * scale, ran * scale)
        running.add(row, ran * scale, over * scale)
    filled = waiting.fill("waiting", sizes) + running.fill("running", sizes)
    gaps = "".join(
        f'<rect class="gap" x="{svg_plot.number(band.start * scale)}" y="0" '
        f'width="{svg_plot.number((band.end - band.start) * scale)}" height="{rows}">'
        f"<title>{escape(band.why)}</title></rect>"
        for band in bands
    )
    height = max(_HEIGHT_PX.start, min(_HEIGHT_PX.stop - 1, rows * _ROW_PX))
    body = (
        f'{marks}<svg viewBox="0 0 {COLUMNS} {rows}" preserveAspectRatio="none" role="img" aria-label="when pods '
        f'waited and ran" style="height:{height}px">{filled}{gaps}</svg>'
    )
    order = f"{len(spans):,} pods, the first created on top"
    note = order if len(spans) <= rows else f"{order}; one row is up to {-(-len(spans) // rows):,}"
    names = ("submitted", "waiting", "running")[0 if "strip" in marks else 1 :]
    head = f'<ul class="legend">{"".join(f"<li class={name}>{name}</li>" for name in names)}</ul><p>{note}</p>'
    return svg_plot.frame("Waiting and running pods", head, body, svg_plot.time_axis(seconds), None, 'class="gantt"')
