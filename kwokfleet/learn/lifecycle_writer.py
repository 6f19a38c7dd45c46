"""Writes a learned Lifecycle as YAML for a Fleet file, with its samples in comments."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import formatter, writer
from kwokfleet.kube.objects import Manifest
from kwokfleet.learn.model import GRID_S, FailureStats, LearnedLifecycle, LearnedStep, pod_count_text
from kwokfleet.render import distributions

PERCENTILES = (0.5, 0.9, 0.99)
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""Reported for values that fit no distribution."""
MAX_NAME_LENGTH = 30
"""With a Fleet name of the same length it still fits into a label."""
_WIDTH = 110
_PLAIN_STEPS = ("create", "init", "ready", "delete")
_MOST_EXIT_CODE = 255
_MOST_PODS = 100
"""Pods of the example Wave."""


class HasQuantiles(Protocol):
    """A sample of durations, or a distribution."""

    def quantile(self, share: float) -> float:
        """Return the value that a share does not exceed."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a learned Lifecycle."""

    name: str
    """Name of the Lifecycle."""
    source: str
    """Description of the pods."""
    version: str
    """Version of kwokfleet."""


def lifecycle_name(text: str) -> str:
    """Return a valid name for a Lifecycle, derived from any text."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain[:MAX_NAME_LENGTH].strip("-") or "learnt"


# ----------------------------------------------------------------------------------------
# as values


def lifecycle(lesson: LearnedLifecycle, called: str) -> Manifest:
    """Return the Lifecycle, as a Fleet file has it."""
    steps = {each: step.fit.shape.written() for each, step in lesson.steps.items()}
    pod: Manifest = {each: steps[each] for each in _PLAIN_STEPS[:3] if each in steps}
    if "complete" in steps:
        pod["complete"] = {"after": steps["complete"]} | ({} if lesson.jobs else {"when": "always"})
    if lesson.fails is not None:
        pod["fail"] = _fail(lesson.fails) | ({"after": steps["fail"]} if "fail" in steps else {})
    if lesson.crashes is not None and "every" in steps:
        pod["restart"] = {"every": steps["every"]} | _said(lesson.crashes, least=0)
        if "backoff" in steps:
            pod["restart"]["backoff"] = steps["backoff"]
    pod |= {"delete": steps["delete"]} if "delete" in steps else {}
    return {"name": called, "pod": pod}


def _fail(fails: FailureStats) -> Manifest:
    return {"probability": max(0.0001, round(fails.count / max(fails.count, fails.of), 4))} | _said(fails, least=1)


def _said(trouble: FailureStats, *, least: int) -> Manifest:
    """Return reason and exit code; an exit code out of range becomes 1."""
    code = trouble.exit_code if least <= trouble.exit_code <= _MOST_EXIT_CODE else 1
    return {"reason": " ".join(trouble.reason.split()) or "Error", "exitCode": code}


def result_value(lesson: LearnedLifecycle, about: Provenance) -> Manifest:
    """Return everything learned, for JSON output."""
    return {
        "lifecycle": lifecycle(lesson, about.name),
        "source": about.source,
        "pods": lesson.pods,
        "since": _instant(lesson.since),
        "until": _instant(lesson.until),
        "steps": {each: _step_value(step) for each, step in lesson.steps.items()},
        "notes": list(lesson.notes),
    }


def _step_value(step: LearnedStep) -> Manifest:
    fit = step.fit
    return {
        "samples": fit.sample.size,
        "clock": step.clock.value,
        "resolutionSeconds": GRID_S[step.clock],
        "distribution": fit.shape.name,
        "delay": fit.shape.written(),
        "kolmogorovSmirnov": round(fit.distance, 4),
        "poor": fit.is_poor,
        "tooFewToTell": fit.is_guess,
        "worseByAic": {each: round(worse, 1) for each, worse in sorted(fit.alternatives.items())},
        "seen": {f"p{share * 100:g}": round(fit.sample.quantile(share), 3) for share in QUANTILES},
        "expected": {f"p{share * 100:g}": round(fit.quantile(share), 3) for share in QUANTILES},
        "fitted": {f"p{share * 100:g}": round(fit.shape.quantile(share), 3) for share in QUANTILES},
    }


def _instant(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ----------------------------------------------------------------------------------------
# as text


def lifecycle_text(lesson: LearnedLifecycle, about: Provenance) -> str:
    """Return the Lifecycle as part of a Fleet file."""
    return "".join(f"{line}\n" for line in (*_head(lesson, about), "lifecycles:", *_entry(lesson, about)))


def fleet_text(lesson: LearnedLifecycle, about: Provenance, called: str) -> str:
    """Return a Fleet file with nodes, the Lifecycle, and a Wave of pods that use it."""
    whole = writer.to_yaml(
        {
            "apiVersion": fleet_api.API_VERSION,
            "kind": "Fleet",
            "metadata": {"name": called},
            "spec": {"nodePools": [{"name": "general", "replicas": 10}], "waves": [_wave(lesson, about)]},
        }
    )
    entry = [f"  {line}" for line in ("lifecycles:", *_entry(lesson, about))]
    plain = "".join(f"{line}\n" for line in (*_head(lesson, about), whole.rstrip("\n"), *entry))
    tidy = formatter.format_text(called, plain)
    return tidy if isinstance(tidy, str) else plain


def _wave(lesson: LearnedLifecycle, about: Provenance) -> Manifest:
    spec: Manifest = {"restartPolicy": "Never" if "complete" in lesson.steps or lesson.fails else "Always"}
    spec |= {"initContainers": [{"name": "init", "image": "busybox"}]} if "init" in lesson.steps else {}
    spec["containers"] = [{"name": "main", "image": "busybox"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": spec}, "backoffLimit": 0}}
    return {
        "name": "learnt",
        "start": {"after": "10s"},
        "count": max(1, min(_MOST_PODS, lesson.pods)),
        "arrivals": {"rate": "5/s"},
        "lifecycle": about.name,
        "template": job if lesson.jobs else pod,
    }


def _head(lesson: LearnedLifecycle, about: Provenance) -> Iterator[str]:
    when = f", {_instant(lesson.since)} to {_instant(lesson.until)}" if lesson.since is not None else ""
    yield f"# Learnt by kwokfleet {about.version} from {pod_count_text(lesson.pods)} of {_line(about.source)}{when}."
    for note in lesson.notes:
        yield from textwrap.wrap(f"Note: {_line(note)}.", _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _entry(lesson: LearnedLifecycle, about: Provenance) -> Iterator[str]:
    pod = lifecycle(lesson, about.name)["pod"]
    yield f"  - name: {about.name}"
    yield "    pod:" if pod else "    pod: {}"
    for part, said in pod.items():
        if part in _PLAIN_STEPS:
            yield from _commented(lesson, part, "      ")
            yield f"      {part}: {flow_yaml(said)}"
        else:
            yield f"      {part}:"
            yield from _nested(lesson, part, said)


_INSIDE = {
    "complete": {"after": "complete"},
    "fail": {"after": "fail"},
    "restart": {"every": "every", "backoff": "backoff"},
}


def _nested(lesson: LearnedLifecycle, part: str, said: Mapping[str, Any]) -> Iterator[str]:
    trouble = {"fail": lesson.fails, "restart": lesson.crashes}.get(part)
    if trouble is not None:
        yield f"        # {_told(trouble, part)}"
    for key, each in said.items():
        if key in _INSIDE[part]:
            yield from _commented(lesson, _INSIDE[part][key], "        ")
        yield f"        {key}: {flow_yaml(each)}"


def _told(trouble: FailureStats, part: str) -> str:
    others = ", ".join(f"{_line(reason)} {count}x" for reason, count in sorted(trouble.others.items()))
    what = f"{trouble.count:,} of {pod_count_text(trouble.of)} failed"
    if part == "restart":
        what = f"{trouble.count:,} crashes in {pod_count_text(trouble.of)}"
    return what + (f"; also {others}" if others else "")


def _commented(lesson: LearnedLifecycle, part: str, pad: str) -> Iterator[str]:
    step = lesson.steps[part]
    fit = step.fit
    seen, expected = (
        " ".join(f"p{share * 100:g} {percentile_text(step, each, share)}" for share in PERCENTILES)
        for each in (fit.sample, fit)
    )
    yield f"{pad}# {measured(step)}: {fit_summary(step)}"
    yield f"{pad}# seen {seen}; expected {expected}"
    if fit.is_poor:
        yield f"{pad}# seen in detail: {detail(step)}"


def detail(step: LearnedStep) -> str:
    """Return the quantiles of the sample."""
    sample = step.fit.sample
    return ", ".join(f"{share * 100:g} % {percentile_text(step, sample, share)}" for share in QUANTILES)


def measured(step: LearnedStep) -> str:
    """Return the sample size, the clock and its resolution."""
    clock = "API timestamps" if step.clock.value == "api" else "watch"
    return f"{step.fit.sample.size:,} by {clock} ({GRID_S[step.clock]:g} s)"


def fit_summary(step: LearnedStep) -> str:
    """Return the quality of a fit."""
    fit = step.fit
    words = [f"{fit.shape.name}, KS {fit.distance:.3f}"]
    words += ["too few samples to choose a distribution"] * fit.is_guess
    words += ["poor fit; no better distribution is available"] * fit.is_poor
    words += [f"{step.backwards:,} negative durations: clocks differ"] * bool(step.backwards)
    return "; ".join(words)


def percentile_text(step: LearnedStep, known: HasQuantiles, share: float) -> str:
    """Return a percentile, rounded to the resolution of its clock."""
    width = GRID_S[step.clock]
    return distributions.duration_text(round(known.quantile(share) / width, 1) * width)


_DELAY = re.compile(r"[0-9.]+m?s(\.\.[0-9.]+m?s)?")


def flow_yaml(said: object) -> str:
    """Return a value on one line."""
    if isinstance(said, Mapping):
        return "{" + ", ".join(f"{key}: {flow_yaml(each)}" for key, each in said.items()) + "}"
    if isinstance(said, str) and _DELAY.fullmatch(said):
        return said  # a duration needs no quotes
    return writer.to_yaml({"a": said}).removeprefix("a:").strip()


def _line(said: str) -> str:
    """Return a text as one line, safe in a comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in said).split())
