"""Writes a learned Lifecycle as YAML for a Fleet file, with its samples in comments."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kwokfleet.api import fleet as fleet_api
from kwokfleet.documents import formatter, writer
from kwokfleet.kube.objects import Manifest
from kwokfleet.learn.fitting import Fit, Sample
from kwokfleet.learn.learner import GRID_S, FailureStats, LearnedLifecycle, LearnedStep, pod_count_text
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


def lifecycle(learned: LearnedLifecycle, name: str) -> Manifest:
    """Return the Lifecycle, as a Fleet file has it."""
    steps = {step_name: step.fit.shape.written() for step_name, step in learned.steps.items()}
    pod: Manifest = {step_name: steps[step_name] for step_name in _PLAIN_STEPS[:3] if step_name in steps}
    if "complete" in steps:
        pod["complete"] = {"after": steps["complete"]} | ({} if learned.jobs else {"when": "always"})
    if learned.fails is not None:
        probability = round(learned.fails.count / max(learned.fails.count, learned.fails.of), 4)
        pod["fail"] = {"probability": max(0.0001, probability)} | _reason(learned.fails, least=1)
        pod["fail"] |= {"after": steps["fail"]} if "fail" in steps else {}
    if learned.crashes is not None and "every" in steps:
        pod["restart"] = {"every": steps["every"]} | _reason(learned.crashes, least=0)
        pod["restart"] |= {"backoff": steps["backoff"]} if "backoff" in steps else {}
    pod |= {"delete": steps["delete"]} if "delete" in steps else {}
    return {"name": name, "pod": pod}


def _reason(failures: FailureStats, *, least: int) -> Manifest:
    """Return reason and exit code; an exit code out of range becomes 1."""
    code = failures.exit_code if least <= failures.exit_code <= _MOST_EXIT_CODE else 1
    return {"reason": " ".join(failures.reason.split()) or "Error", "exitCode": code}


def result_value(learned: LearnedLifecycle, about: Provenance) -> Manifest:
    """Return everything learned, for JSON output."""
    return {
        "lifecycle": lifecycle(learned, about.name),
        "source": about.source,
        "pods": learned.pods,
        "since": _instant(learned.since),
        "until": _instant(learned.until),
        "steps": {name: _step_value(step) for name, step in learned.steps.items()},
        "notes": list(learned.notes),
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
        "worseByAic": {name: round(worse, 1) for name, worse in sorted(fit.alternatives.items())},
    } | {
        key: {f"p{share * 100:g}": round(source.quantile(share), 3) for share in QUANTILES}
        for key, source in (("seen", fit.sample), ("expected", fit), ("fitted", fit.shape))
    }


def _instant(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ----------------------------------------------------------------------------------------
# as text


def lifecycle_text(learned: LearnedLifecycle, about: Provenance) -> str:
    """Return the Lifecycle as part of a Fleet file."""
    return "".join(f"{line}\n" for line in (*_head(learned, about), "lifecycles:", *_entry(learned, about)))


def fleet_text(learned: LearnedLifecycle, about: Provenance, fleet_name: str) -> str:
    """Return a Fleet file with nodes, the Lifecycle, and a Wave of pods that use it."""
    fleet = {
        "apiVersion": fleet_api.API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": fleet_name},
        "spec": {"nodePools": [{"name": "general", "replicas": 10}], "waves": [_wave(learned, about)]},
    }
    entry = [f"  {line}" for line in ("lifecycles:", *_entry(learned, about))]
    plain = "".join(f"{line}\n" for line in (*_head(learned, about), writer.to_yaml(fleet).rstrip("\n"), *entry))
    tidy = formatter.format_text(fleet_name, plain)
    return tidy if isinstance(tidy, str) else plain


def _wave(learned: LearnedLifecycle, about: Provenance) -> Manifest:
    spec: Manifest = {"restartPolicy": "Never" if "complete" in learned.steps or learned.fails else "Always"}
    spec |= {"initContainers": [{"name": "init", "image": "busybox"}]} if "init" in learned.steps else {}
    spec["containers"] = [{"name": "main", "image": "busybox"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": spec}, "backoffLimit": 0}}
    return {
        "name": "learnt",
        "start": {"after": "10s"},
        "count": max(1, min(_MOST_PODS, learned.pods)),
        "arrivals": {"rate": "5/s"},
        "lifecycle": about.name,
        "template": job if learned.jobs else pod,
    }


def _head(learned: LearnedLifecycle, about: Provenance) -> Iterator[str]:
    when = f", {_instant(learned.since)} to {_instant(learned.until)}" if learned.since is not None else ""
    yield f"# Learnt by kwokfleet {about.version} from {pod_count_text(learned.pods)} of {_line(about.source)}{when}."
    for note in learned.notes:
        yield from textwrap.wrap(f"Note: {_line(note)}.", _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _entry(learned: LearnedLifecycle, about: Provenance) -> Iterator[str]:
    pod = lifecycle(learned, about.name)["pod"]
    yield f"  - name: {about.name}"
    yield "    pod:" if pod else "    pod: {}"
    for part, value in pod.items():
        if part in _PLAIN_STEPS:
            yield from _commented(learned, part, "      ")
            yield f"      {part}: {flow_yaml(value)}"
        else:
            yield f"      {part}:"
            yield from _nested(learned, part, value)


def _nested(learned: LearnedLifecycle, part: str, value: Mapping[str, Any]) -> Iterator[str]:
    failures = {"fail": learned.fails, "restart": learned.crashes}.get(part)
    if failures is not None:
        what = "crashes in {}" if part == "restart" else "of {} failed"
        others = ", ".join(f"{_line(reason)} {count}x" for reason, count in sorted(failures.others.items()))
        also = f"; also {others}" if others else ""
        yield f"        # {failures.count:,} {what.format(pod_count_text(failures.of))}{also}"
    for key, field_value in value.items():
        if key in ("after", "every", "backoff"):
            yield from _commented(learned, part if key == "after" else key, "        ")
        yield f"        {key}: {flow_yaml(field_value)}"


def _commented(learned: LearnedLifecycle, part: str, pad: str) -> Iterator[str]:
    step = learned.steps[part]
    fit = step.fit
    seen, expected = (
        " ".join(f"p{share * 100:g} {percentile_text(step, source, share)}" for share in PERCENTILES)
        for source in (fit.sample, fit)
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


def percentile_text(step: LearnedStep, source: Sample | Fit, share: float) -> str:
    """Return a percentile, rounded to the resolution of its clock."""
    width = GRID_S[step.clock]
    return distributions.duration_text(round(source.quantile(share) / width, 1) * width)


_DELAY = re.compile(r"[0-9.]+m?s(\.\.[0-9.]+m?s)?")


def flow_yaml(value: object) -> str:
    """Return a value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str) and _DELAY.fullmatch(value):
        return value  # a duration needs no quotes
    return writer.to_yaml({"a": value}).removeprefix("a:").strip()


def _line(text: str) -> str:
    """Return a text as one line, safe in a comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
