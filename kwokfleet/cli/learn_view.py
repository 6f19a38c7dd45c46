"""Fits of `kwokfleet learn` as a table with histograms."""

from collections.abc import Iterator, Sequence

from kwokfleet.cli import output
from kwokfleet.learn import fitting, lifecycle_writer
from kwokfleet.learn.model import GRID_S, LearnedLifecycle, LearnedStep, pod_count_text
from kwokfleet.measure.result import Clock

BINS = 16
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"


def can_draw(encoding: str | None) -> bool:
    """Return whether an encoding supports block characters."""
    try:
        _BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def table(lesson: LearnedLifecycle, *, blocks: bool) -> str:
    """Return two rows for each step: the observed and the fitted distribution."""
    return output.table([row for name, step in lesson.steps.items() for row in _rows(name, step, blocks=blocks)])


def _rows(name: str, step: LearnedStep, *, blocks: bool) -> Iterator[dict[str, object]]:
    fit = step.fit
    seen, expected = fitting.histogram(fit, BINS)
    top = max(*seen, *expected)
    yield {
        "step": name,
        "seen": f"{fit.sample.size:,} ({GRID_S[step.clock]:g} s)",
        **{
            f"p{share * 100:g}": lifecycle_writer.percentile_text(step, fit.sample, share)
            for share in lifecycle_writer.PERCENTILES
        },
        "distribution": _bars(seen, top, blocks=blocks),
        "KS": "",
        "lifecycle": "",
    }
    yield {
        "step": "",
        "seen": "fitted",
        **{
            f"p{share * 100:g}": lifecycle_writer.percentile_text(step, fit, share)
            for share in lifecycle_writer.PERCENTILES
        },
        "distribution": _bars(expected, top, blocks=blocks),
        "KS": f"{fit.distance:.3f}{'!' * fit.is_poor}{'?' * fit.is_guess}",
        "lifecycle": lifecycle_writer.flow_yaml(fit.shape.written()),
    }


def _bars(shares: Sequence[float], top: float, *, blocks: bool) -> str:
    """Return a histogram on one line; shares above 0.1 % are visible."""
    marks = _BLOCKS if blocks else _ASCII
    most = len(marks) - 1
    levels = (max(round(most * share / top), int(share > 0.001)) for share in shares)  # noqa: PLR2004  # one in a thousand
    return f"|{''.join(marks[level] for level in levels)}|"


def remarks(lesson: LearnedLifecycle) -> Iterator[str]:
    """Yield notes about the quality of the fit."""
    yield "\nKS: the largest distance between the two distributions, from 0 to 1"
    if any(step.clock is Clock.API for step in lesson.steps.values()):
        yield "1 s: from timestamps in the pods, in whole seconds; smaller variations look constant"
    for name, step in lesson.steps.items():
        fit = step.fit
        if fit.is_poor:
            seen = lifecycle_writer.detail(step)
            yield f"! {name}: no supported distribution fits well; this is the best one. Observed: {seen}"
        if fit.is_guess:
            yield f"? {name}: {fit.sample.size} are too few to choose a distribution; {fitting.MIN_SAMPLES} are needed"
        if step.backwards:
            yield f"  {name}: {step.backwards:,} ended before they started, because clocks differ; they count as 0 s"
    if (fails := lesson.fails) is not None:
        yield f"  {fails.count:,} of {pod_count_text(fails.of)} failed: {fails.reason}, exit code {fails.exit_code}"
    if (crashes := lesson.crashes) is not None:
        why = f"{crashes.reason}, exit code {crashes.exit_code}"
        yield f"  {crashes.count:,} crashes of containers in {pod_count_text(crashes.of)}: {why}"
    for note in lesson.notes:
        yield f"  note: {note}"
