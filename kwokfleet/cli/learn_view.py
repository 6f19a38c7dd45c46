"""Fits of `kwokfleet learn` as a table with histograms."""

import sys
from collections.abc import Iterator, Sequence

from kwokfleet.cli import output
from kwokfleet.learn import fitting, lifecycle_writer
from kwokfleet.learn.learner import GRID_S, LearnedLifecycle, LearnedStep, pod_count_text
from kwokfleet.measure.result import Clock

BINS = 16
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"


def table(lesson: LearnedLifecycle) -> str:
    """Return two rows for each step: the observed and the fitted distribution."""
    return output.table([row for name, step in lesson.steps.items() for row in _rows(name, step)])


def _rows(name: str, step: LearnedStep) -> Iterator[dict[str, object]]:
    fit = step.fit
    seen, expected = fitting.histogram(fit, BINS)
    top = max(*seen, *expected)
    observed = (name, f"{fit.sample.size:,} ({GRID_S[step.clock]:g} s)", fit.sample, seen, "", "")
    distance = f"{fit.distance:.3f}{'!' * fit.is_poor}{'?' * fit.is_guess}"
    fitted = ("", "fitted", fit, expected, distance, lifecycle_writer.flow_yaml(fit.shape.written()))
    for title, size, known, shares, ks, written in (observed, fitted):
        row: dict[str, object] = {"step": title, "seen": size}
        for share in lifecycle_writer.PERCENTILES:
            row[f"p{share * 100:g}"] = lifecycle_writer.percentile_text(step, known, share)
        yield row | {"distribution": _bars(shares, top), "KS": ks, "lifecycle": written}


def _bars(shares: Sequence[float], top: float) -> str:
    """Return a histogram on one line; shares above 0.1 % are visible."""
    marks = _BLOCKS if output.can_print(_BLOCKS, sys.stderr.encoding) else _ASCII
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
