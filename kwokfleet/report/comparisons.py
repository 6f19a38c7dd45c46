"""Comparisons of two Runs for others to read: JSON for programs, rows for a terminal, Markdown for pull requests."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import orjson

from kwokfleet.measure.compare import Comparison, Delta, DeltaVerdict, RegressionLimits
from kwokfleet.measure.result import Clock
from kwokfleet.report import numbers

_CLUSTERLOADER2 = (Clock.CL2_2024, Clock.CL2_2026)
_OF_LATENCIES = ("p50", "p90", "p99")
_SAYING_MOST = {"throughput": ("mean", "max"), "lateness": ("p99",)}


def to_json(found: Comparison) -> str:
    """Return every number."""
    document = {
        "before": found.before.name,
        "after": found.after.name,
        "regressions": len(found.regressions),
        "notes": list(found.notes),
        "deltas": [_document(each) for each in found.deltas],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _document(each: Delta) -> dict[str, object]:
    return {
        "of": each.of,
        "name": each.name,
        "statistic": each.statistic,
        "clock": each.clock,
        "unit": each.unit.value,
        "before": each.before,
        "after": each.after,
        "change": each.change,
        "ratio": each.ratio,
        "verdict": each.verdict.value,
    }


def rows(found: Comparison) -> Iterator[dict[str, object]]:
    """Yield what people want to see: whatever got worse, and of the rest what says most."""
    exact = {(each.of, each.name) for each in found.deltas if each.clock is Clock.WATCH and each.change is not None}
    for each in found.deltas:
        if _shown(each, exact):
            yield {
                "what": f"{each.name} {each.statistic}",
                "of": each.of,
                "clock": each.clock or "-",
                "before": numbers.amount(each.before, each.unit),
                "after": numbers.amount(each.after, each.unit),
                "change": numbers.change(each.change, each.ratio, each.unit),
                "verdict": each.verdict.value,
            }


def _shown(each: Delta, exact: AbstractSet[tuple[str, str]]) -> bool:
    """Return whether a number is worth a line; *exact*: what both Runs know by the better clock."""
    if each.clock in _CLUSTERLOADER2 or (each.before is None and each.after is None):
        return False
    if each.verdict is DeltaVerdict.WORSE:
        return True
    if each.name == "count":
        return bool(each.change)
    if each.clock is Clock.API and (each.of, each.name) in exact:
        return False
    return each.statistic in _SAYING_MOST.get(each.name, _OF_LATENCIES)


def summary(found: Comparison, limits: RegressionLimits) -> str:
    """Say how it ended, in a line."""
    rule = f"{numbers.share(limits.regression)} and {numbers.duration(limits.floor_s)}"
    if not found.regressions:
        return f"no regression: nothing is worse by more than {rule}"
    word = "regression" if len(found.regressions) == 1 else "regressions"
    return f"{len(found.regressions)} {word}: worse by more than {rule}"


def to_markdown(found: Comparison, limits: RegressionLimits) -> str:
    """Return a comparison as Markdown."""
    out = [f"**kwokfleet:** {summary(found, limits)}", "", f"From `{found.before.name}` to `{found.after.name}`:", ""]
    out += [f"> {_cell(note)}" for note in found.notes]
    out += [""] if found.notes else []
    out += ["| what | of | clock | before | after | change | verdict |", "|---|---|---|--:|--:|--:|---|"]
    for row in rows(found):
        cells = [_cell(str(each)) for each in row.values()]
        worse = row["verdict"] == DeltaVerdict.WORSE.value
        out.append(f"| {' | '.join([*cells[:-1], f'**{cells[-1]}**' if worse else cells[-1]])} |")
    return "\n".join([*out, ""])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
