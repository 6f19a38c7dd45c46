"""Results as one page that needs nothing else: no server, no network, no script to be readable.

The page may be mailed, kept as a build's artifact, opened years later. Its policy forbids it to fetch anything, and
allows exactly the one script that it was made with.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from kwokfleet.measure.result import PodTimes, Result
from kwokfleet.report import numbers
from kwokfleet.report.html import figures as report_plots
from kwokfleet.report.html import markup, tables

MAX_RUNS = 8
"""As many as can be told apart by colour."""


@dataclass(frozen=True, slots=True)
class PageAssets:
    """What makes a document a page."""

    style: str
    script: str


Run = tuple[Result, Iterable[PodTimes]]


def page(runs: Sequence[Run], look: PageAssets, *, compare: bool = False) -> str:
    """Return one Run, or several beside each other, the first of which the others are compared with.

    Runs of different Waves follow each other, unless they are to be compared.
    """
    waves: dict[tuple[str, str], list[Run]] = {}
    for made, pods in runs:
        waves.setdefault(("", "") if compare else (made.fleet, made.wave), []).append((made, pods))
    parts = [_wave(mine) for mine in waves.values()]
    title, body = parts[0] if len(parts) == 1 else _overview([made for made, _ in runs], parts)
    return _document(title, f"{body}{_footer([made for made, _ in runs])}", look)


def _wave(runs: Sequence[Run]) -> tuple[str, str]:
    shown = runs[-MAX_RUNS:]
    title, body = _single(*shown[0]) if len(shown) == 1 else _several(shown)
    if len(runs) > len(shown):
        body += f'<ul class="note"><li>{len(shown)} of {len(runs)} Runs are shown, the latest.</li></ul>'
    return title, body


def _overview(results: Sequence[Result], parts: Sequence[tuple[str, str]]) -> tuple[str, str]:
    title = f"{len(results)} Runs of {len(parts)} waves"
    names = [markup.Cell(each.run, "text") for each in results]
    head = f"<header><h1>{title}</h1></header>\n{_runs_table(names, results)}"
    return title, head + "".join(f"<article>{body}</article>\n" for _, body in parts)


def _document(title: str, body: str, look: PageAssets) -> str:
    allowed = base64.b64encode(hashlib.sha256(look.script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{look.style}</style>\n</head>\n<body>\n{body}"
        f"<script>{look.script}</script>\n</body>\n</html>\n"
    )


def _single(made: Result, pods: Iterable[PodTimes]) -> tuple[str, str]:
    title = f"{made.fleet} / {made.wave} / {made.run}"
    told = [f"<span>{escape(each)}</span>" for each in _facts(made)]
    notes = "".join(f"<li>{escape(each)}</li>" for each in tables.notes(made))
    [over_time] = report_plots.over_time([made])
    body = (
        f"<header><div><h1>{escape(made.wave)} <small>Run {escape(made.run)} of fleet {escape(made.fleet)}</small></h1>"
        f'<p class="lead">{"".join(told)}</p></div>{tables.badge(made)}</header>\n'
        f"{tables.cards(made)}"
        f"{f'<ul class={chr(34)}note{chr(34)}>{notes}</ul>' if notes else ''}"
        f"{markup.section('Gates', tables.gates([(None, made)]))}"
        f"{markup.section('Timeline', report_plots.timeline(made, pods))}"
        f"{markup.section('Over time', _grid('grid2', over_time))}"
        f"{markup.section('How long it took', _grid('grid3', report_plots.distributions(made)))}"
        f"{markup.section('Latencies', tables.latencies(made))}"
        f"{markup.section('Counts and rates', tables.counts(made) + '<br>' + tables.rates(made))}"
        f"{markup.section('Troubles', tables.failures(made))}"
    )
    return title, body


def _grid(style: str, body: str) -> str:
    return f'<div class="{style}">{body}</div>' if body else ""


def _facts(made: Result) -> Iterable[str]:
    yield f"started {numbers.instant(made.start)}"
    yield {"Done": "complete", "Running": "still running", "Cancelled": "cancelled"}[made.state]
    yield from (f"{name} {value}" for name, value in (("on", made.cluster), ("files", made.revision)) if value)


def _several(runs: Sequence[Run]) -> tuple[str, str]:
    results = [made for made, _ in runs]
    names = _names(results)
    tags = [tables.tag(place, name) for place, name in enumerate(names)]
    waves = ", ".join(dict.fromkeys(each.wave for each in results))
    title = f"{waves}: {len(runs)} Runs compared"
    over_time = report_plots.over_time(results)
    timelines = [report_plots.timeline(made, pods) for made, pods in runs]
    body = (
        f"<header><div><h1>{escape(waves)} <small>{len(runs)} Runs compared</small></h1>"
        f'<p class="lead"><span>differences are told against {escape(names[0])}</span></p></div></header>\n'
        f"{markup.section('Runs', _runs_table(tags, results))}"
        f"{markup.section('Comparison', tables.comparison(tags, results))}"
        f"{markup.section('How long it took', _grid('grid3', report_plots.compared_distributions(names, results)))}"
        f"{markup.section('Gates', tables.gates(list(zip(tags, results, strict=True))))}"
        f"{markup.section('Timeline', _columns(tags, timelines))}"
        f"{markup.section('Over time', _columns(tags, over_time))}"
        f"{markup.section('Latencies', _details(names, [tables.latencies(each) for each in results]))}"
        f"{markup.section('Troubles', _columns(tags, [tables.failures(each) for each in results]))}"
    )
    return title, body


def _names(results: Sequence[Result]) -> list[str]:
    """Return how to tell Runs apart, as short as it can be."""
    same = len({(each.fleet, each.wave) for each in results}) == 1
    short = [f"Run {each.run}" if same else each.name for each in results]
    return (
        short if len(set(short)) == len(short) else [f"{chr(65 + place)}: {each}" for place, each in enumerate(short)]
    )


def _runs_table(tags: Sequence[markup.Cell], results: Sequence[Result]) -> str:
    head = [markup.Cell(each, "text") for each in ("run", "wave", "started", "state", "gates", "what one must know")]
    rows = [
        [name, *(markup.Cell(each, "text") for each in _about(made))] for name, made in zip(tags, results, strict=True)
    ]
    return markup.table(head, rows)


def _about(made: Result) -> Iterable[str]:
    yield from (f"{made.fleet}/{made.wave}", numbers.instant(made.start), made.state, numbers.verdict(made))
    yield " ".join(tables.notes(made))


def _columns(tags: Sequence[markup.Cell], bodies: Sequence[str]) -> str:
    if not any(bodies):
        return ""
    made = (
        f'<section><h3 class="run {each.style}">{escape(each.text)}</h3>'
        f'<div class="stack">{body or "<p class=soft>none</p>"}</div></section>'
        for each, body in zip(tags, bodies, strict=True)
    )
    return f'<div class="runs">{"".join(made)}</div>'


def _details(names: Sequence[str], bodies: Sequence[str]) -> str:
    return "".join(markup.details(name, body) for name, body in zip(names, bodies, strict=True))


def _footer(results: Sequence[Result]) -> str:
    clocks = dict.fromkeys(each.clock for made in results for each in made.latencies)
    rows = "".join(f"<dt>{clock}</dt><dd>{escape(numbers.CLOCKS[clock])}</dd>" for clock in clocks)
    versions = ", ".join(dict.fromkeys(escape(each.version) for each in results if each.version))
    return (
        f"<footer><dl>{rows}</dl><p>Percentiles as ClusterLoader2 has them: the smallest value that so many percent do "
        f"not exceed. Times on plots count from the start of the Run. kwokfleet {versions}</p></footer>\n"
    )
