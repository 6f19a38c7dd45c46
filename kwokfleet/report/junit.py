"""Results as JUnit's XML: a case for each Run, and one for each of its gates.

Cases are named as ClusterLoader2 names its own (`TEST overall (CONFIG)`, `TEST: STEP`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax import saxutils

from kwokfleet.measure.result import GateResult, Result
from kwokfleet.report import numbers as figures

SUITE = "kwokfleet"
CLUSTERLOADER2_SUITE = "ClusterLoaderV2"
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot carry, not even escaped."""


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    seconds: float
    failure: str = ""
    cause: str = "Failure"
    skipped: str = ""
    out: str = ""


def to_xml(results: Sequence[Result], suite: str = SUITE) -> str:
    """Return one document for any number of Runs."""
    cases = [(each, case) for each in results for case in _cases(each)]
    failures = sum(bool(case.failure) for _, case in cases)
    skipped = sum(bool(case.skipped) for _, case in cases)
    total = sum(figures.length(each) or 0.0 for each in results)
    numbers = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="{skipped}" time="{total:.3f}"'
    start = min((each.start for each in results), default=None)
    stamp = f' timestamp="{start.replace(tzinfo=None).isoformat(timespec="seconds")}"' if start else ""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {numbers}>"]
    lines.append(f"  <testsuite name={_attribute(suite)} {numbers}{stamp}>")
    lines += [line for _, case in cases for line in _written(case, suite)]
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _cases(made: Result) -> Iterator[_Case]:
    seconds = figures.length(made) or 0.0
    title = f"{made.fleet}/{made.wave}"
    overall = f"{title} overall ({made.run})"
    failed = [_told(gate) for gate in made.gates if not gate.passed]
    if made.state == "Running":
        yield _Case(overall, seconds, skipped="the Run is not over", out=_numbers(made))
    elif made.state == "Cancelled":
        yield _Case(overall, seconds, failure="the Run was cancelled", cause="Cancelled", out=_numbers(made))
    else:
        yield _Case(overall, seconds, failure="\n".join(failed), out=_numbers(made))
    for gate in made.gates:
        cause = "NoData" if gate.no_data else "Failure"
        yield _Case(f"{title}: {gate.name} ({made.run})", 0.0, "" if gate.passed else _told(gate), cause)


def _told(gate: GateResult) -> str:
    clock = f" (clock: {gate.clock})" if gate.clock else ""
    why = f": {gate.why}" if gate.why else ""
    return f"{gate.name}: wanted {gate.want}, got {gate.got}{clock}{why}"


def _numbers(made: Result) -> str:
    return "\n".join(_facts(made))


def _facts(made: Result) -> Iterable[str]:
    yield f"{made.template_kind or 'objects'}: {figures.sentence(made.objects)}"
    if made.template_kind != "Pod":
        yield f"pods: {figures.sentence(made.pods)}"
    for each in made.latencies:
        told = ", ".join(f"{name} {figures.duration(getattr(each, name))}" for name in ("p50", "p90", "p99"))
        yield f"{each.of} {each.name} ({each.clock}): {told if each.count else figures.NO_DATA}"
    yield from (f"nobody was watching from {each.start} to {each.end}: {each.why}" for each in made.gaps)
    yield from (f"{each.count} times: {each.what} (first: {each.example})" for each in made.troubles)


def _written(case: _Case, suite: str) -> Iterator[str]:
    head = f"    <testcase name={_attribute(case.name)} classname={_attribute(suite)} time={_attribute(case.seconds)}"
    body = []
    if case.skipped:
        body.append(f"      <skipped message={_attribute(case.skipped)}/>")
    if case.failure:
        first = case.failure.partition("\n")[0]
        attributes = f"type={_attribute(case.cause)} message={_attribute(first)}"
        body.append(f"      <failure {attributes}>{_text(case.failure)}</failure>")
    if case.out:
        body.append(f"      <system-out>{_text(case.out)}</system-out>")
    yield from (f"{head}>", *body, "    </testcase>") if body else (f"{head}/>",)


def _attribute(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return saxutils.quoteattr(_FORBIDDEN.sub("\ufffd", text))


def _text(value: str) -> str:
    return saxutils.escape(_FORBIDDEN.sub("\ufffd", value))
