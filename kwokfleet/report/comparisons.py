"""Comparisons of two Runs as JSON, as rows for a terminal, and as Markdown for pull requests."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import orjson

from kwokfleet.measure.compare import Comparison, Delta, DeltaVerdict, RegressionLimits
from kwokfleet.measure.result import CLUSTERLOADER2, Clock
from kwokfleet.report import numbers

_DELTA_FIELDS = ("of", "name", "statistic", "clock", "unit", "before", "after", "change", "ratio", "verdict")
_LATENCY_STATISTICS = ("p50", "p90", "p99")
_DISPLAYED_STATISTICS = {"throughput": ("mean", "max"), "lateness": ("p99",)}


def to_json(comparison: Comparison) -> str:
    """Return all differences as JSON."""
    document = {
        "before": comparison.before.name,
        "after": comparison.after.name,
        "regressions": len(comparison.regressions),
        "notes": comparison.notes,
        "deltas": [{name: getattr(delta, name) for name in _DELTA_FIELDS} for delta in comparison.deltas],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    """Yield the regressions and the most important other differences."""
    exact_deltas = (item for item in comparison.deltas if item.clock is Clock.WATCH and item.change is not None)
    exact = {(delta.of, delta.name) for delta in exact_deltas}
    for delta in comparison.deltas:
        if _is_displayed(delta, exact):
            yield {
                "what": f"{delta.name} {delta.statistic}",
                "of": delta.of,
                "clock": delta.clock or "-",
                "before": numbers.amount(delta.before, delta.unit),
                "after": numbers.amount(delta.after, delta.unit),
                "change": numbers.change(delta.change, delta.ratio, delta.unit),
                "verdict": delta.verdict.value,
            }


def _is_displayed(delta: Delta, exact: AbstractSet[tuple[str, str]]) -> bool:
    """Return whether a difference is displayed; *exact*: latencies that both Runs have by the watch clock."""
    if delta.clock in CLUSTERLOADER2 or (delta.before is None and delta.after is None):
        return False
    if delta.verdict is DeltaVerdict.WORSE:
        return True
    if delta.name == "count":
        return bool(delta.change)
    if delta.clock is Clock.API and (delta.of, delta.name) in exact:
        return False
    return delta.statistic in _DISPLAYED_STATISTICS.get(delta.name, _LATENCY_STATISTICS)


def summary(comparison: Comparison, limits: RegressionLimits) -> str:
    """Return the summary line."""
    rule = f"{numbers.share(limits.regression)} and {numbers.duration(limits.floor_s)}"
    count = len(comparison.regressions)
    return f"{count or 'no'} regression{'s' if count > 1 else ''} above {rule}"


def to_markdown(comparison: Comparison, limits: RegressionLimits) -> str:
    """Return a comparison as Markdown."""
    lines = [f"**kwokfleet:** {summary(comparison, limits)}", ""]
    lines += [f"From `{comparison.before.name}` to `{comparison.after.name}`:", ""]
    lines += [*(f"> {_cell(note)}" for note in comparison.notes), ""] if comparison.notes else []
    lines += ["| what | of | clock | before | after | change | verdict |", "|---|---|---|--:|--:|--:|---|"]
    for row in rows(comparison):
        cells = [_cell(str(value)) for value in row.values()]
        is_worse = row["verdict"] == DeltaVerdict.WORSE.value
        lines.append(f"| {' | '.join([*cells[:-1], f'**{cells[-1]}**' if is_worse else cells[-1]])} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
