"""The HTML report: one self-contained page that needs no server, no network and no script.

Its Content-Security-Policy forbids all requests, and allows only the script inside the page.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from kwokfleet.measure.result import PodTimes, Result
from kwokfleet.report import numbers
from kwokfleet.report.html import figures, markup, tables

Run = tuple[Result, Iterable[PodTimes]]


def page(runs: Sequence[Run], style: str, script: str, *, compare: bool = False) -> str:
    """Return the page of one Run, or of several side by side, compared with the first.

    Runs of different Waves follow each other, unless *compare* is set.
    """
    waves: dict[tuple[str, str], list[Run]] = {}
    for result, pods in runs:
        waves.setdefault(("", "") if compare else (result.fleet, result.wave), []).append((result, pods))
    results = [result for result, _ in runs]
    parts = [_wave(wave_runs) for wave_runs in waves.values()]
    title, body = parts[0] if len(parts) == 1 else _overview(results, parts)
    return _document(title, body + _footer(results), style, script)


def _wave(runs: Sequence[Run]) -> tuple[str, str]:
    displayed = runs[-figures.MAX_LINES :]
    title, body = _single(*displayed[0]) if len(displayed) == 1 else _several(displayed)
    if len(runs) > len(displayed):
        body += markup.notes([f"The latest {len(displayed)} of {len(runs)} Runs are displayed."])
    return title, body


def _overview(results: Sequence[Result], parts: Sequence[tuple[str, str]]) -> tuple[str, str]:
    title = f"{len(results)} Runs of {len(parts)} waves"
    names = [markup.Cell(result.run, "text") for result in results]
    head = f"<header><h1>{title}</h1></header>\n{_runs_table(names, results)}"
    return title, head + "".join(f"<article>{body}</article>\n" for _, body in parts)


def _document(title: str, body: str, style: str, script: str) -> str:
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _single(result: Result, pods: Iterable[PodTimes]) -> tuple[str, str]:
    title = f"{result.fleet} / {result.wave} / {result.run}"
    facts = "".join(f"<span>{escape(fact)}</span>" for fact in _facts(result))
    [over_time] = figures.over_time([result])
    body = (
        f"<header><div><h1>{escape(result.wave)} "
        f"<small>Run {escape(result.run)} of fleet {escape(result.fleet)}</small></h1>"
        f'<p class="lead">{facts}</p></div>{tables.badge(result)}</header>\n'
        f"{tables.cards(result)}"
        f"{markup.notes(tables.notes(result))}"
        f"{markup.section('Gates', tables.gates([(None, result)]))}"
        f"{markup.section('Timeline', figures.timeline(result, pods))}"
        f"{markup.section('Over time', _grid('grid2', over_time))}"
        f"{markup.section('Latency distributions', _grid('grid3', figures.distributions(result)))}"
        f"{markup.section('Latencies', tables.latencies(result))}"
        f"{markup.section('Counts and rates', tables.counts(result) + '<br>' + tables.rates(result))}"
        f"{markup.section('Failures', tables.failures(result))}"
    )
    return title, body


def _grid(style: str, body: str) -> str:
    return f'<div class="{style}">{body}</div>' if body else ""


def _facts(result: Result) -> Iterable[str]:
    yield f"started {numbers.instant(result.start)}"
    yield {"Done": "complete", "Running": "still running", "Cancelled": "cancelled"}[result.state]
    yield from (f"{name} {value}" for name, value in (("on", result.cluster), ("files", result.revision)) if value)


def _several(runs: Sequence[Run]) -> tuple[str, str]:
    results = [result for result, _ in runs]
    names = _names(results)
    tags = [tables.tag(place, name) for place, name in enumerate(names)]
    waves = ", ".join(dict.fromkeys(result.wave for result in results))
    title = f"{waves}: {len(runs)} Runs compared"
    over_time = figures.over_time(results)
    timelines = [figures.timeline(result, pods) for result, pods in runs]
    latencies = "".join(
        markup.details(name, tables.latencies(result)) for name, result in zip(names, results, strict=True)
    )
    body = (
        f"<header><div><h1>{escape(waves)} <small>{len(runs)} Runs compared</small></h1>"
        f'<p class="lead"><span>differences are relative to {escape(names[0])}</span></p></div></header>\n'
        f"{markup.section('Runs', _runs_table(tags, results))}"
        f"{markup.section('Comparison', tables.comparison(tags, results))}"
        f"{markup.section('Latency distributions', _grid('grid3', figures.compared_distributions(names, results)))}"
        f"{markup.section('Gates', tables.gates(list(zip(tags, results, strict=True))))}"
        f"{markup.section('Timeline', _columns(tags, timelines))}"
        f"{markup.section('Over time', _columns(tags, over_time))}"
        f"{markup.section('Latencies', latencies)}"
        f"{markup.section('Failures', _columns(tags, [tables.failures(result) for result in results]))}"
    )
    return title, body


def _names(results: Sequence[Result]) -> list[str]:
    """Return short distinct names of Runs."""
    same = len({(result.fleet, result.wave) for result in results}) == 1
    short = [f"Run {result.run}" if same else result.name for result in results]
    is_distinct = len(set(short)) == len(short)
    return short if is_distinct else [f"{chr(65 + place)}: {name}" for place, name in enumerate(short)]


def _runs_table(tags: Sequence[markup.Cell], results: Sequence[Result]) -> str:
    rows = []
    for tag, result in zip(tags, results, strict=True):
        wave, notes = f"{result.fleet}/{result.wave}", " ".join(tables.notes(result))
        about = (wave, numbers.instant(result.start), result.state, numbers.verdict(result), notes)
        rows.append([tag, *markup.texts(*about)])
    return markup.table(markup.texts("run", "wave", "started", "state", "gates", "notes"), rows)


def _columns(tags: Sequence[markup.Cell], bodies: Sequence[str]) -> str:
    if not any(bodies):
        return ""
    sections = (
        f'<section><h3 class="run {tag.style}">{escape(tag.text)}</h3>'
        f'<div class="stack">{body or "<p class=soft>none</p>"}</div></section>'
        for tag, body in zip(tags, bodies, strict=True)
    )
    return f'<div class="runs">{"".join(sections)}</div>'


def _footer(results: Sequence[Result]) -> str:
    clocks = dict.fromkeys(latency.clock for result in results for latency in result.latencies)
    rows = "".join(f"<dt>{clock}</dt><dd>{escape(numbers.CLOCKS[clock])}</dd>" for clock in clocks)
    versions = ", ".join(dict.fromkeys(escape(result.version) for result in results if result.version))
    return (
        f"<footer><dl>{rows}</dl><p>Percentiles as ClusterLoader2 defines them: the smallest value that so many "
        f"percent of values do not exceed. Times in plots count from the start of the Run. "
        f"kwokfleet {versions}</p></footer>\n"
    )
